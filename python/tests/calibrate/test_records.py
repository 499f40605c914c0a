# SPDX-License-Identifier: Apache-2.0
"""Files of records: what is read, and what is refused with file, line and field."""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routepack import FormatError, InvalidInput, IoError
from routepack.calibrate import Record, read_records
from routepack.calibrate.records import KINDS

ROW = {
    "kind": "row",
    "seconds": 0.5,
    "tokens": [30, 20],
    "squares": [500, 400],
    "loads": [[40, 60], [50, 50]],
    "layers": 2,
}


def write(path: pathlib.Path, text: str | bytes) -> pathlib.Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def test_both_kinds_of_file_in_order(tmp_path):
    table = write(
        tmp_path / "k.csv",
        "# a comment\n\nkind, stage, layers, tokens, squares, seconds, expert_peak, note\n"
        "attention,full,1,100,5000,1.5e-3,,\nexperts,,1,,,2,640.5,\"with, comma\"\nstep,,,,,0.1,,\n",
    )  # fmt: skip
    lines = write(
        tmp_path / "r.jsonl", f"\ufeff{json.dumps(ROW)}\n\n" + json.dumps({"kind": "step", "seconds": 1, "stage": None})
    )
    records = read_records([table, lines])
    assert [(r.kind, r.where) for r in records] == [
        ("attention", f"{table}: line 4"), ("experts", f"{table}: line 5"), ("step", f"{table}: line 6"),
        ("row", f"{lines}: line 1"), ("step", f"{lines}: line 3"),
    ]  # fmt: skip
    assert (records[0].stage, records[0].layers, records[0].tokens, records[0].squares) == (
        "full",
        1,
        (100.0,),
        (5000.0,),
    )
    assert records[1].expert_peak == 640.5 and records[1].tokens is None and records[3].timed_layers == 2
    assert records[3].loads is not None and records[3].loads.tolist() == ROW["loads"]


def line(**changes: object) -> str:
    return json.dumps({key: value for key, value in {**ROW, **changes}.items() if value != "-"})


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "found no valid JSON"),
        ("[1]", "found [1], wanted an object"),
        ('{"kind": "step", "kind": "row", "seconds": 1}', "found no valid JSON ('a key stands twice')"),
        ("[" * 100000, "found no valid JSON"),
        (line(kind="-"), "kind: found none, wanted it in every record"),
        (line(seconds="-"), "seconds: found none, wanted it in every record"),
        (line(kind="rows"), "kind: found 'rows', wanted one of row, attention, experts, all_to_all, step"),
        (line(kind=["row"]), "kind: found ['row'], wanted printable text"),
        (line(seconds=0), "seconds: found 0.0, wanted a time from 1e-12 to 1e9"),
        (line(seconds=-1), "seconds: found -1, wanted a number from 0 to 2^53"),
        (line(seconds=True), "seconds: found True, wanted a number from 0 to 2^53"),
        (line(seconds="fast"), "seconds: found 'fast', wanted a number from 0 to 2^53"),
        (line().replace("0.5", "NaN"), "seconds: found nan, wanted a number from 0 to 2^53"),
        (line().replace("0.5", "1e999"), "seconds: found inf, wanted a number from 0 to 2^53"),
        (line().replace("0.5", "1" + "0" * 400), "seconds: found 1000"),
        (line(seconds=1e-13), "seconds: found 1e-13, wanted a time from 1e-12 to 1e9"),
        (line(seconds=2e9), "seconds: found 2000000000.0, wanted a time"),
        (line(loads=[[True, 2], [3, 4]]), "loads[0][0]: found True, wanted an integer of at least 0, below 2^53"),
        (line(loads=[["ab", 2], [3, 4]]), "loads[0][0]: found 'ab', wanted an integer"),
        (line(loads=["ab", "cd"]), "loads[0]: found 'ab', wanted a list, [layers][ranks] in all"),
        (line(loads=[[2**53, 2], [3, 4]]), "loads[0][0]: found 9007199254740992, wanted an integer"),
        (line(second=1), "found a field 'second', wanted one of kind, seconds"),
        (line(stage="full"), "stage: found it in a record of kind row, wanted layers, tokens"),
        (line(tokens=[]), "tokens: found an empty list, wanted one number for every cell"),
        (line(tokens=[30, 2.5]), "tokens[1]: found 2.5, wanted an integer of at least 0, below 2^53"),
        (line(tokens=[30, -1]), "tokens[1]: found -1, wanted an integer"),
        (line(tokens=[30, 2**53]), "tokens[1]: found 9007199254740992, wanted an integer"),
        (line(tokens=[30]), "squares: found 2 cells beside 1 of tokens, wanted one Σt² for the Σt of every cell"),
        (line(tokens="-"), "squares: found no tokens, wanted one Σt²"),
        (line(squares=[500, 19]), "squares[1]: found 19 for 20 tokens, wanted Σt², from Σt up to (Σt)²"),
        (line(squares=[500, 401]), "squares[1]: found 401 for 20 tokens, wanted Σt²"),
        (line(layers=0), "layers: found 0, wanted a number of layers of at least 1"),
        (line(layers=3), "loads: found 2 layers, wanted 3, as the field layers says"),
        (line(loads=[[1, 2], [3]]), "loads[1]: found 1 numbers, wanted 2 as before it"),
        (line(loads=[1, 2]), "loads[0]: found 1, wanted a list, [layers][ranks] in all"),
        (line(loads=[[1, 2], [3, 4.5]]), "loads[1][1]: found 4.5, wanted an integer"),
        (line(loads=[]), "loads: found [], wanted a list"),
        (line(expert_peak=5), "expert_peak: found it beside loads, wanted one of them"),
        (line(expert_loads=[[[1], [2]], [[1, 2], [3, 4]]], loads="-"), "expert_loads: found lists of several lengths"),
        (line(expert_loads=[[[1], [2, 3]]], loads="-"), "expert_loads[0][1]: found 2 numbers, wanted 1 as before it"),
        (
            line(expert_loads=[[[1], [2]]], active_experts=1, loads="-", layers=1),
            "active_experts: found it beside expert_loads, wanted one of them",
        ),
        (line(sent=[[1, 2], [3, 4]]), "received: found none, wanted sent and received together"),
        (
            line(sent=[[1, 2, 3]] * 2, received=[[1, 2, 3]] * 2),
            "sent: found [2, 3] layers and ranks, wanted [2, 2] as loads has",
        ),
        (
            line(sent=[[1, 2]] * 2, received=[[1, 2]] * 2, all_to_all_peak=9),
            "all_to_all_peak: found it beside sent or received, wanted one of them",
        ),
        (
            '{"kind": "attention", "seconds": 1, "layers": 1, "tokens": 5}',
            "stage: found none, wanted it in a record of kind",
        ),
        ('{"kind": "attention", "seconds": 1, "stage": "a", "tokens": 5}', "layers: found none, wanted it in a record"),
        (
            '{"kind": "attention", "seconds": 1, "stage": "a", "layers": 1, "tokens": [5, 6]}',
            "tokens: found 2 cells, wanted one: the cell that was timed",
        ),
        ('{"kind": "attention", "seconds": 1, "stage": "a\\nb"}', "stage: found 'a\\nb', wanted printable text"),
        (
            '{"kind": "step", "seconds": 1, "tokens": 5}',
            "tokens: found it in a record of kind step, wanted seconds alone",
        ),
    ],
)
def test_a_line_of_json_that_is_wrong(tmp_path, text, message):
    path = write(tmp_path / "r.jsonl", f'{{"kind": "step", "seconds": 1}}\n{text}\n')
    with pytest.raises(FormatError) as caught:
        read_records([path])
    assert str(caught.value).startswith(f"{path}: line 2: {message}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("kind,second\n", "line 1: found a column 'second', wanted names of fields: kind, seconds"),
        ("kind,loads\n", "line 1: found a column loads, wanted lists in JSON lines only"),
        ("kind,seconds,kind\n", "line 1: found a column kind, wanted every column once"),
        ("kind,seconds\nstep\n", "line 2: found 1 cells, wanted 2 as in the first line"),
        ("kind,seconds\nstep,fast\n", "line 2: seconds: found 'fast', wanted a number"),
        ("kind,seconds\nstep,1_0\n", "line 2: seconds: found '1_0', wanted a number"),
        ("kind,seconds\nstep,nan\n", "line 2: seconds: found nan, wanted a number from 0 to 2^53"),
        ('kind,seconds\nstep,"1\n', "line 2: found no line of CSV"),
        ("kind,seconds\nstep,\n", "line 2: seconds: found none"),
        ("kind,seconds,tokens\nrow,1,1e3\n", "line 2: tokens: found 1000.0, wanted an integer"),
        (b"kind,seconds\nst\xffep,1\n", "line 2: found bytes that are no UTF-8, wanted text"),
    ],
)
def test_a_line_of_csv_that_is_wrong(tmp_path, text, message):
    path = write(tmp_path / "k.csv", text)
    with pytest.raises(FormatError) as caught:
        read_records([path])
    assert str(caught.value).startswith(f"{path}: {message}") and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n\n", "# only words\n", "kind,seconds\n"])
def test_a_file_without_records(tmp_path, text):
    with pytest.raises(FormatError, match="found no records, wanted at least one$"):
        read_records([write(tmp_path / "k.csv", text)])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidInput, match=r"found '\.txt' at its end, wanted \.csv, \.jsonl or \.ndjson"):
        read_records([tmp_path / "k.txt"])
    with pytest.raises(IoError, match="none.csv: cannot read: No such file"):
        read_records([tmp_path / "none.csv"])
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(IoError, match="folder.csv: cannot read"):
        read_records([tmp_path / "folder.csv"])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**60) | st.floats() | st.sampled_from([*KINDS, "", "full", "\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "kind"]), inner, max_size=2),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["kind", "seconds", "x", *(field for field in Record.__dataclass_fields__ if field != "where")]
)


@given(st.dictionaries(FIELDS, VALUES, max_size=6), st.sampled_from(KINDS))
def test_no_line_of_json_does_anything_but_read_or_refuse(tmp_path_factory, values, kind):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    write(path, json.dumps({"kind": kind, "seconds": 1.0, **values}) + "\n")
    try:
        (record,) = read_records([path])
    except FormatError as error:
        assert str(error).startswith(f"{path}: line 1: ") and "\n" not in str(error)
    else:
        assert record.seconds > 0.0 and record.kind in KINDS


@given(st.binary(max_size=200), st.sampled_from([".csv", ".jsonl"]))
def test_no_bytes_do_anything_but_read_or_refuse(tmp_path_factory, content, suffix):
    path = write(tmp_path_factory.getbasetemp() / f"bytes{suffix}", content)
    with pytest.raises(FormatError):
        read_records([path])
