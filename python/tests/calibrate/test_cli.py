# SPDX-License-Identifier: Apache-2.0
"""`routepack calibrate`: files that others read, one line per error, and the commands of docs/calibrate.md."""

from __future__ import annotations

import datetime
import errno
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")

import routepack  # noqa: E402
from calibrate.synthetic import CAP, STAGES, World  # noqa: E402
from calibrate.test_refusals import hide_scipy, refusing  # noqa: E402
from routepack import _files  # noqa: E402
from routepack._terminal import display_width  # noqa: E402
from routepack.calibrate import (  # noqa: E402
    Calibration,
    DenseStage,
    Record,
    calibrate,
    cost_toml,
    read_records,
    timing_toml,
)
from routepack.calibrate.cli import main  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples" / "calibration"
PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "calibrate.md"
EXAMPLE = [
    EXAMPLES / "kernels.csv",
    EXAMPLES / "rows.jsonl",
    "--stage",
    "sliding:12",
    "--stage",
    "full:12",
    "--cap",
    "2048",
]


def run(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == status, err
    if status == 0:
        assert err == ""
        return out
    assert out == "" and err.count("\n") == 1 and err.startswith("routepack calibrate: error: ")
    return err[len("routepack calibrate: error: ") : -1]


def toml(text: str) -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib")
    document: dict[str, Any] = tomllib.loads(text)
    return document


def test_a_cost_file_that_the_planner_reads(tmp_path, capsys):
    out = json.loads(run(capsys, *EXAMPLE, "-o", tmp_path / "cost.toml", "--json"))
    cost = routepack.CostModel.load(tmp_path / "cost.toml")
    assert [stage.name for stage in cost.stages] == ["sliding", "full"] and cost.expert == [1.0]
    found = {entry["name"]: entry for entry in out["costs"]}
    for stage in cost.stages:
        assert (
            found[f"{stage.name}.alpha"]["value"] == stage.alpha and found[f"{stage.name}.beta"]["value"] == stage.beta
        )
    # What make_measurements.py put in: alpha = 5e-6/5e-7, beta = 2048·2.3e-9/5e-7.
    assert found["full.alpha"]["low"] < 10.0 < found["full.alpha"]["high"] < 10.3
    assert found["full.beta"]["low"] < 9.4208 < found["full.beta"]["high"] < 10.0
    assert found["sliding.beta"]["low"] == 0.0 and out["written"] == [str(tmp_path / "cost.toml")]
    text = (tmp_path / "cost.toml").read_text(encoding="utf-8")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    assert re.search(
        rf"on ({today}|{today - datetime.timedelta(1)}), from 126 records: 32 row, 48 attention, 24 exp", text
    )
    assert "# full.alpha 9.9" in text and "Residuals, all: rms" in text and "95 % intervals" in text


def test_a_plan_with_the_costs_that_were_found(tmp_path, capsys):
    run(capsys, *EXAMPLE, "-o", tmp_path / "cost.toml")
    window = routepack.Window.load(EXAMPLES.parent / "windows" / "gptoss20b-mmlu-354.safetensors")
    cost = routepack.CostModel.load(tmp_path / "cost.toml")
    params = routepack.PlanParams(effort="fast")
    plan = routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=params)
    assert plan.verify(window) == []


def test_a_timing_file_has_the_seconds(tmp_path, capsys):
    run(capsys, *EXAMPLE, "-o", tmp_path / "c.toml", "--timing", tmp_path / "t.toml", "--forward-share", 0.25)
    timing = toml((tmp_path / "t.toml").read_text(encoding="utf-8"))
    assert list(timing) == ["tile", "expert", "all_to_all", "stage", "fixed"] and timing["tile"] == 1
    assert list(timing["expert"]) == ["token", "active"] and list(timing["all_to_all"]) == ["token", "fixed"]
    assert [list(stage) for stage in timing["stage"]] == [["name", "layers", "token", "pair"]] * 2
    assert list(timing["fixed"]) == ["row", "step", "forward_share"] and timing["fixed"]["forward_share"] == 0.25
    assert [(stage["name"], stage["layers"]) for stage in timing["stage"]] == [("sliding", 12), ("full", 12)]
    true = {("expert", "token"): 5e-7, ("expert", "active"): 4e-6, ("all_to_all", "token"): 8e-8,
            ("all_to_all", "fixed"): 1.2e-4, ("fixed", "row"): 4e-3, ("fixed", "step"): 0.12}  # fmt: skip
    for (table, key), value in true.items():
        assert math.isclose(timing[table][key], value, rel_tol=0.1), (table, key)
    assert timing["stage"][0]["pair"] == 0.0 and math.isclose(timing["stage"][1]["pair"], 2.3e-9, rel_tol=0.1)
    cost = routepack.CostModel.load(tmp_path / "c.toml")
    unit = timing["expert"]["token"]
    for stage, seconds in zip(cost.stages, timing["stage"]):
        assert math.isclose(stage.alpha, seconds["token"] / unit, rel_tol=1e-14)
        assert math.isclose(stage.beta, 2048 * seconds["pair"] / unit, rel_tol=1e-14)


def test_terms_that_were_left_out_are_written_as_zero_and_said(tmp_path, capsys):
    kernels = (EXAMPLES / "kernels.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "k.csv").write_text("".join(line for line in kernels if not line.startswith("step")), encoding="utf-8")
    files = [tmp_path / "k.csv", *EXAMPLE[1:]]
    assert "--without fixed.step" in run(capsys, *files, "-o", tmp_path / "c.toml", status=2)
    assert not (tmp_path / "c.toml").exists()
    table = run(
        capsys, *files, "-o", tmp_path / "c.toml", "--timing", tmp_path / "t.toml", "--without", "fixed.step",
        "--without", "stage.sliding.pair",
    )  # fmt: skip
    assert re.search(r"^  fixed\.step +0 +left out$", table, re.MULTILINE)
    text = (tmp_path / "t.toml").read_text(encoding="utf-8")
    assert "step = 0.0  # left out" in text and "# Left out, taken as 0: stage.sliding.pair, fixed.step" in text
    assert routepack.CostModel.load(tmp_path / "c.toml").stages[0].beta == 0.0


def test_the_table_fits_a_terminal_and_has_every_term(tmp_path, capsys):
    table = run(capsys, *EXAMPLE, "-o", tmp_path / "c.toml")
    assert max(map(len, table.splitlines())) <= 100
    for word in (
        "expert.token",
        "all_to_all.fixed",
        "stage.full.pair",
        "fixed.row",
        "full.alpha",
        "sliding.beta",
        "R²",
    ):
        assert word in table
    assert table.endswith(f"  wrote {tmp_path / 'c.toml'}\n")


def test_a_tile_and_a_confidence(tmp_path, capsys):
    assert "wanted a number between 0 and 1" in run(
        capsys, *EXAMPLE, "-o", tmp_path / "c", "--confidence", 95, status=2
    )
    narrow = json.loads(run(capsys, *EXAMPLE, "-o", tmp_path / "c", "--json", "--confidence", 0.5))
    wide = json.loads(run(capsys, *EXAMPLE, "-o", tmp_path / "c", "--json", "--confidence", 0.99))
    for a, b in zip(narrow["terms"], wide["terms"]):
        assert b["low"] <= a["low"] <= a["value"] == b["value"] <= a["high"] < b["high"]
    tiled = json.loads(run(capsys, *EXAMPLE, "-o", tmp_path / "c", "--json", "--tile", 64, "--keep-wide"))
    assert tiled["tile"] == 64 and tiled["terms"][0]["value"] < narrow["terms"][0]["value"]


def test_what_is_infinite_is_null_in_json(tmp_path, capsys):
    kernels = (EXAMPLES / "kernels.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "k.csv").write_text("".join(kernels[:-5]), encoding="utf-8")  # one step record is left
    arguments = [tmp_path / "k.csv", *EXAMPLE[1:], "-o", tmp_path / "c.toml", "--json"]
    assert "fixed.step: one record alone decides it" in run(capsys, *arguments, status=2)
    out = json.loads(run(capsys, *arguments, "--keep-wide"), parse_constant=lambda text: pytest.fail(text))
    step = next(term for term in out["terms"] if term["name"] == "fixed.step")
    assert step["high"] is None and step["low"] == 0.0 and "one record alone" in out["notes"][0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: MEASUREMENTS, -o/--output, --cap (see routepack calibrate --help)"),
        (["none.csv", "-o", "c", "--cap", "8"], "none.csv: cannot read: No such file or directory"),
        ([*EXAMPLE[:2], "-o", "c", "--cap", "many"], "argument --cap: invalid int value: 'many' (see routepack"),
        ([*EXAMPLE[:2], "-o", "c", "--cap", "0"], "--cap: found 0, wanted 1 to 94906265 tokens"),
        (
            [*EXAMPLE[:2], "-o", EXAMPLES / "kernels.csv", "--cap", "8"],
            f"{EXAMPLES}/kernels.csv: found as an output and as",
        ),
        (
            [*EXAMPLE, "-o", "c", "--timing", "./c"],
            "./c: found as an output and as another file, wanted different files",
        ),
        (
            [*EXAMPLE, "-o", "c", "--timing", "t", "--forward-share", "2"],
            "forward share: found 2.0, wanted a number from 0",
        ),
        ([*EXAMPLE[:2], "-o", "c", "--cap", "94906266"], "--cap: found 94906266, wanted 1 to 94906265 tokens"),
        ([*EXAMPLE, "-o", "c", "--tile", "1048577"], "--tile: found 1048577, wanted 1 to 1048576 tokens"),
        ([*EXAMPLE, "-o", "c", "--stage", "x:10001"], "--stage: found 'x:10001', wanted at most 10000 layers"),
        ([*EXAMPLE, "-o", "c", "--stage", f"x:{'9' * 5000}"], "--stage: found 'x:999"),
        ([*EXAMPLE, "-o", "c", "--stage", "x:9977"], "--stage: found 10001 layers in all, wanted at most 10000"),
        ([*EXAMPLE, "-o", ""], "argument -o/--output: found an empty name, wanted a file (see routepack calibrate"),
        ([*EXAMPLE, "-o", "c", "--timing", ""], "argument --timing: found an empty name, wanted a file (see routepack"),
        (["", "-o", "c", "--cap", "8"], "argument MEASUREMENTS: found an empty name, wanted a file (see routepack"),
        ([*EXAMPLE, "-o", "none/c.toml"], "none/c.toml: found no folder none, wanted one to write into"),
        ([*EXAMPLE, "-o", "c", "--timing", "none/t"], "none/t: found no folder none, wanted one to write into"),
        ([*EXAMPLE, "-o", "c", "--timing", EXAMPLES], f"{EXAMPLES}: found a directory, wanted a file to write"),
        (
            ["k.csv", "-o", "c", "--cap", "8", "--stage", "full"],
            "--stage: found 'full', wanted NAME:LAYERS, such as full:24",
        ),
        (["k.csv", "-o", "c", "--cap", "8", "--stage", "full:0"], "--stage: found 'full:0', wanted NAME:LAYERS"),
        (["k.csv", "-o", "c", "--cap", "8", "--stage", "a\nb:3"], "--stage: found 'a\\nb:3', wanted NAME:LAYERS"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments, status=2).startswith(message)
    assert os.listdir(tmp_path) == []


def test_a_missing_scipy(monkeypatch, tmp_path, capsys):
    hide_scipy(monkeypatch)
    said = run(capsys, *EXAMPLE, "-o", tmp_path / "c.toml", status=2)
    assert said == 'calibrate: found no scipy, wanted it for the fit: pip install "routepack[calibrate]" brings it'


@pytest.mark.parametrize(
    "raised, said",
    [
        (MemoryError(), "not enough memory for this input"),
        (ImportError("libx.so: failed to map\nsegment"), "cannot load scipy: libx.so: failed to map segment"),
        (ModuleNotFoundError("No module named 'scipy._lib'", name="scipy._lib"), "cannot load scipy: No module named"),
    ],
)
def test_a_scipy_that_cannot_be_loaded_says_why(monkeypatch, tmp_path, capsys, raised, said):
    monkeypatch.setattr("builtins.__import__", refusing(raised))
    assert run(capsys, *EXAMPLE, "-o", tmp_path / "c", status=2).startswith(said)
    assert os.listdir(tmp_path) == []


def test_an_interrupt_while_scipy_loads_is_one(monkeypatch, tmp_path, capsys):
    hidden = ImportError("numpy._core.multiarray failed to import")
    hidden.__context__ = KeyboardInterrupt()
    for raised in (KeyboardInterrupt(), hidden):
        with monkeypatch.context() as patch:
            patch.setattr("builtins.__import__", refusing(raised))
            assert main([*map(str, EXAMPLE), "-o", str(tmp_path / "c")]) == 130
        assert capsys.readouterr() == ("", "") and os.listdir(tmp_path) == []


def test_a_second_output_that_fails_leaves_the_first_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old", encoding="utf-8")
    stage = _files._stage

    def full(target: pathlib.Path, data: bytes) -> pathlib.Path:
        if target.name == "b":
            raise OSError(errno.ENOSPC, "No space left on device")
        return stage(target, data)

    monkeypatch.setattr(_files, "_stage", full)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    with pytest.raises(routepack.IoError, match=rf"^{b}: found no space left on device, wanted a file that can be written$"):
        _files.write_texts({a: "new", b: "new"})
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_text(encoding="utf-8") == "old"
    _files.write_texts({a: "new"})
    assert (tmp_path / "a").read_text(encoding="utf-8") == "new" and os.listdir(tmp_path) == ["a"]


def test_links_and_pipes_stay_what_they_are(tmp_path):
    (tmp_path / "real").write_text("old", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        _files.write_texts({str(tmp_path / "link"): "new", str(tmp_path / "pipe"): "through"})
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text(encoding="utf-8") == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "real"]


def test_an_output_that_is_an_input_by_another_name(tmp_path, capsys):
    shutil.copy(EXAMPLE[0], tmp_path / "k.csv")
    os.link(tmp_path / "k.csv", tmp_path / "hard")
    (tmp_path / "soft").symlink_to("k.csv")
    for name in ("hard", "soft"):
        for outputs in (["-o", tmp_path / name], ["-o", tmp_path / "c", "--timing", tmp_path / name]):
            said = run(capsys, tmp_path / "k.csv", *EXAMPLE[1:], *outputs, status=2)
            assert said.startswith(f"{tmp_path / name}: found as an output and as another file")
    assert (tmp_path / "k.csv").read_bytes() == EXAMPLES.joinpath("kernels.csv").read_bytes()


def test_a_term_longer_than_the_simulator_takes_is_not_written(tmp_path, capsys):
    slow = [{"kind": "step", "seconds": 1.1e6 + k} for k in range(4)]
    slow += [{"kind": "experts", "seconds": 1e-6 * n, "layers": 1, "loads": [[n]]} for n in (100, 200, 400, 800)]
    slow += [
        {"kind": "attention", "seconds": 4e-6 * n, "stage": "d", "layers": 1, "tokens": n, "squares": n}
        for n in (10, 20, 40)
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, slow)), encoding="utf-8")
    arguments = [tmp_path / "s.jsonl", "--cap", "8", "-o", tmp_path / "c"]
    for term in ("expert.active", "all_to_all", "fixed.row", "stage.d.pair"):
        arguments += ["--without", term]
    said = run(capsys, *arguments, "--timing", tmp_path / "t", status=2)
    assert said == "timing file: fixed.step: found 1.1e+06 s, wanted at most 1e+06 s"
    assert os.listdir(tmp_path) == ["s.jsonl"]
    run(capsys, *arguments)


def test_notes_fit_a_terminal(tmp_path, capsys):
    kernels = (EXAMPLES / "kernels.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    for stage in ("full", "漢" * 60, "x" * 190):
        text = "".join(kernels[:-5]).replace(",full,", f",{stage},").replace(",sliding,", ",y,")
        (tmp_path / "k.csv").write_text(text, encoding="utf-8")
        table = run(capsys, tmp_path / "k.csv", EXAMPLE[1], "--cap", 2048, "-o", tmp_path / "c", "--keep-wide")
        notes = table[table.index("  Stages and their") : table.index("  wrote ")]
        assert "  Uncertain: fixed.step: one record alone decides it" in notes
        assert max(map(display_width, notes.splitlines())) <= 100
        assert stage in re.sub(r"\n    ", "", notes)


def test_it_is_a_subcommand(tmp_path):
    command = [sys.executable, "-m", "routepack", "calibrate", *map(str, EXAMPLE), "-o", str(tmp_path / "c.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "" and (tmp_path / "c.toml").exists()


@pytest.fixture(scope="module")
def small() -> list[Record]:
    return World(3, noise=0.02).records(rows=6, attention=8, experts=10, exchanges=6, steps=4)


@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.isprintable))
@settings(max_examples=40)
def test_any_printable_name_of_a_stage_comes_back(small, name):
    records = [record for record in small if record.stage != "sliding"]
    renamed = [
        Record(**{**{key: getattr(r, key) for key in Record.__dataclass_fields__}, "stage": r.stage and name})
        for r in records
    ]
    found = calibrate(renamed, capacity=CAP, stages=[DenseStage(name, 1)], keep_wide=True)
    text = cost_toml(found, ["a\nb.csv"], datetime.date(2026, 1, 2))
    cost = routepack.CostModel.parse(text)
    assert cost == found.cost and cost.stages[0].name == name and "on 2026-01-02, from" in text
    assert toml(timing_toml(found))["stage"][0]["name"] == name


@pytest.fixture(scope="module")
def found(small) -> Calibration:
    return calibrate(small, capacity=CAP, stages=STAGES, keep_wide=True)


def test_terms_by_name(found):
    assert found.seconds("expert.token") > 0.0
    with pytest.raises(routepack.InvalidInput, match="^term: found 'expert', wanted one of expert.token"):
        found.seconds("expert")


def test_the_example_is_what_its_script_writes(tmp_path):
    subprocess.run([sys.executable, str(EXAMPLES / "make_measurements.py"), str(tmp_path)], check=True)
    for name in ("kernels.csv", "rows.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()
    assert "SYNTHETIC" in (EXAMPLES / "kernels.csv").read_text(encoding="utf-8").splitlines()[0]
    assert all(
        json.loads(line)["note"] == "synthetic" for line in (EXAMPLES / "rows.jsonl").read_text("utf-8").splitlines()
    )


def test_the_page_has_every_option_and_field(capsys):
    page = PAGE.read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help", "--output"}
    assert [option for option in sorted(options) if f"`{option}" not in page] == []
    fields = set(Record.__dataclass_fields__) - {"where"} | {"note"}
    assert [field for field in sorted(fields) if f"`{field}`" not in page] == []
    assert [term for term in ("expert.token", "stage.NAME.pair", "fixed.step") if f"`{term}`" not in page] == []


def test_the_commands_of_the_page_run_and_give_what_it_shows(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    shutil.copytree(EXAMPLES.parent, tmp_path / "examples")
    (tmp_path / "bin").mkdir()
    for name, words in {"routepack": "-m routepack ", "python": ""}.items():
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n', encoding="utf-8")
        script.chmod(0o755)
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "COLUMNS": "100"}
    ran = 0
    for block in blocks:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = re.sub(r" \\\n\s*", " ", part).partition("\n")
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0 or "error" in shown, done.stderr
            said = (done.stdout + done.stderr).strip()
            if shown.strip():
                assert shown.strip() == said, command
            ran += 1
    assert ran >= 4


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    shutil.copytree(EXAMPLES.parent, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/calibrate.md", "exec"), names)
    assert names["found"].seconds("expert.token") > 0.0 and "alpha" in capsys.readouterr().out


def test_the_simulator_takes_as_long_as_the_model_says(tmp_path):
    from routepack.__main__ import program

    files = [EXAMPLES / "kernels.csv", EXAMPLES / "rows.jsonl"]
    found = calibrate(read_records(files), capacity=2048, stages=[DenseStage("sliding", 12), DenseStage("full", 12)])
    (tmp_path / "t.toml").write_text(timing_toml(found), encoding="utf-8")
    path = EXAMPLES.parent / "windows" / "gptoss20b-mmlu-354.safetensors"
    window, topology = routepack.Window.load(path), routepack.Topology(dp=8, ep=8)
    params = routepack.PlanParams(effort="fast")
    plan = routepack.plan(window, topology, capacity=2048, cost=found.cost, params=params)
    plan.save(tmp_path / "p.json")
    command = [str(program()), "simulate", str(path), str(tmp_path / "p.json"), "--timing", str(tmp_path / "t.toml")]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if "not built yet" in done.stderr:
        pytest.skip("this build has no simulate")
    assert done.returncode == 0, done.stderr
    counts, lengths = np.asarray(window.counts), np.asarray(window.lengths, dtype=np.float64)
    slots = np.asarray(routepack.Placement.load(tmp_path / "p.json").physical_to_logical, dtype=np.int64)
    rows = []
    for row in json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["layout"]:
        loads = counts[[sample for cell in row for sample in cell]].sum(axis=0, dtype=np.int64)
        rows.append(
            Record(
                "row",
                1.0,
                tokens=tuple(float(lengths[cell].sum()) for cell in row),
                squares=tuple(float((lengths[cell] ** 2).sum()) for cell in row),
                expert_loads=np.take_along_axis(loads, slots, axis=1).reshape(24, 8, 4).astype(np.float64),
            )
        )
    seconds = sum(found.predict(rows)) + found.seconds("fixed.step")
    assert math.isclose(json.loads(done.stdout)["seconds"], seconds, rel_tol=1e-12)
