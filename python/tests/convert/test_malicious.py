# SPDX-License-Identifier: Apache-2.0
"""Files made to hurt are refused with one line, before they cost memory and without running anything."""

import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from convert.support import E8, b64, refusal, write_lines
from routepack.convert import KINDS, Limits, Options

ARRAY_KINDS = ["vllm", "verl", "areal", "arrays"]
TINY = Options(experts=8, top_k=2, limits=Limits(sample=4096, header=2048, pickle=4096, inflate_free=2048))


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def npy_header(text, version=1):
    raw = text.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(raw)) + raw


class TestPickles:
    @pytest.mark.parametrize("kind", [*ARRAY_KINDS, "slime", "slime-train", "skyrl", "nemo-rl"])
    def test_a_bare_pickle_is_never_loaded(self, tmp_path, kind):
        path = tmp_path / "d.pkl"
        path.write_bytes(pickle.dumps({"routed_experts": Bomb(tmp_path / "gone")}))
        message = refusal(kind, path, TINY)
        assert not (tmp_path / "gone").exists()
        assert "torch.save" in message

    def test_an_npy_of_objects_is_never_loaded(self, tmp_path):
        np.save(tmp_path / "o.npy", np.array([Bomb(tmp_path / "gone")], dtype=object), allow_pickle=True)
        np.savez(tmp_path / "o.npz", a=np.array([Bomb(tmp_path / "gone")], dtype=object), allow_pickle=True)
        for name in ("o.npy", "o.npz"):
            assert "may run code" in refusal("arrays", tmp_path / name, E8)
        assert not (tmp_path / "gone").exists()

    @pytest.mark.parametrize("kind", ["slime", "verl"])
    def test_a_torch_archive_that_would_run_code_is_refused_with_the_name_of_the_type(self, tmp_path, kind):
        torch = pytest.importorskip("torch")
        torch.save({"samples": [{"tokens": [1, 2], "x": Bomb(tmp_path / "gone")}]}, tmp_path / "d.pt")
        message = refusal(kind, tmp_path / "d.pt", E8)
        assert not (tmp_path / "gone").exists()
        assert "open" in message and "may run code" in message

    def test_objects_of_frameworks_are_refused_with_their_name(self, tmp_path):
        torch = pytest.importorskip("torch")
        torch.save({"samples": [{"tokens": [1, 2], "image": zipfile.ZipInfo("x")}]}, tmp_path / "d.pt")
        assert "zipfile.ZipInfo" in refusal("slime", tmp_path / "d.pt", E8)

    def test_what_other_packages_allow_is_neither_used_nor_lost(self, rng, tmp_path):
        torch = pytest.importorskip("torch")
        from convert.support import check_samples, random_routes

        reconstruct = np.zeros(1).__reduce__()[0]
        routes = random_routes(rng, 6, 2, 8, 2)
        sample = {"tokens": np.arange(7), "rollout_routed_experts": routes, "group_index": 3}
        torch.save({"rollout_id": 0, "samples": [sample]}, tmp_path / "d.pt")
        with torch.serialization.safe_globals([reconstruct, np.ndarray, np.dtype]):
            before = set(torch.serialization.get_safe_globals())
            for _ in range(3):
                check_samples("slime", tmp_path / "d.pt", E8, [(7, routes)])
            assert set(torch.serialization.get_safe_globals()) == before

    def test_numpy_arrays_and_scalars_in_a_torch_archive_are_read_without_numpys_unpickler(self, rng, tmp_path):
        torch = pytest.importorskip("torch")
        from convert.support import check_samples, random_routes

        routes = random_routes(rng, 6, 2, 8, 2)
        sample = {
            "tokens": np.arange(7),
            "rollout_routed_experts": np.asfortranarray(routes),
            "reward": np.float64(1.5),
            "group_index": 3,
            "other": np.array(["a"]),
        }
        torch.save({"rollout_id": 0, "samples": [sample]}, tmp_path / "d.pt")
        check_samples("slime", tmp_path / "d.pt", E8, [(7, routes)])
        sample["rollout_routed_experts"] = routes.astype(float)
        torch.save({"rollout_id": 0, "samples": [sample]}, tmp_path / "e.pt")
        assert "no plain integer type" in refusal("slime", tmp_path / "e.pt", E8)

    def test_compressed_members_and_large_pickles_of_a_torch_archive_are_refused(self, tmp_path):
        torch = pytest.importorskip("torch")
        torch.save({"samples": [{"tokens": list(range(5000))}]}, tmp_path / "d.pt")
        assert "data.pkl: found" in refusal("slime", tmp_path / "d.pt", TINY)
        with (
            zipfile.ZipFile(tmp_path / "d.pt") as old,
            zipfile.ZipFile(tmp_path / "e.pt", "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for info in old.infolist():
                new.writestr(info.filename, old.read(info))
        assert "compressed member" in refusal("slime", tmp_path / "e.pt", E8)

    def test_a_tensor_of_strides_0_that_claims_to_be_huge_is_refused(self, tmp_path):
        torch = pytest.importorskip("torch")
        huge = torch.zeros(1, dtype=torch.int32).expand(10**9, 48, 8)
        torch.save({"samples": [{"tokens": [0] * 9, "rollout_routed_experts": huge}]}, tmp_path / "d.pt")
        assert "smaller storage" in refusal("slime", tmp_path / "d.pt", E8)

    def test_lists_that_share_their_rows_are_refused_by_their_size(self, tmp_path):
        torch = pytest.importorskip("torch")
        rows = [[[1] * 1000] * 1000] * 100000
        torch.save({"samples": [{"tokens": [0] * 100001, "rollout_routed_experts": rows}]}, tmp_path / "d.pt")
        assert "wanted at most" in refusal("slime", tmp_path / "d.pt", E8)


class TestArchives:
    def test_a_member_that_inflates_beyond_the_ratio_is_refused_by_its_directory_entry(self, tmp_path):
        np.savez_compressed(tmp_path / "z.npz", routed_experts=np.zeros((1000, 48, 8), np.int32))
        assert "that inflate to" in refusal("arrays", tmp_path / "z.npz", TINY)

    def test_a_member_above_the_limit_is_refused(self, rng, tmp_path):
        np.savez_compressed(tmp_path / "z.npz", a=rng.integers(0, 8, (1000, 48, 8)))
        assert "after inflating, wanted at most 4096" in refusal("arrays", tmp_path / "z.npz", TINY)

    def test_a_member_whose_directory_entry_lies_is_refused(self, rng, tmp_path):
        np.savez_compressed(tmp_path / "z.npz", a=rng.integers(0, 8, (30, 4, 2)))
        raw = bytearray((tmp_path / "z.npz").read_bytes())
        at = raw.index(b"PK\x01\x02")
        raw[at + 24 : at + 28] = struct.pack("<I", 300)  # the inflated size
        (tmp_path / "y.npz").write_bytes(raw)
        assert "damaged data" in refusal("arrays", tmp_path / "y.npz", E8)

    def test_damaged_encrypted_and_foreign_members_are_refused(self, tmp_path):
        np.savez_compressed(tmp_path / "z.npz", a=np.arange(64).reshape(16, 2, 2) % 8)
        whole = (tmp_path / "z.npz").read_bytes()
        for change in (
            lambda r: r.__setitem__(60, r[60] ^ 255),
            lambda r: r.__setitem__(r.index(b"PK\x01\x02") + 8, 1),
            lambda r: r.__setitem__(r.index(b"PK\x01\x02") + 10, 99),
            lambda r: r.__delitem__(slice(-10, None)),
        ):
            raw = bytearray(whole)
            change(raw)
            (tmp_path / "y.npz").write_bytes(raw)
            refusal("arrays", tmp_path / "y.npz", E8)
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("readme.txt", "x")
        assert "no npy member" in refusal("arrays", tmp_path / "x.npz", E8)

    def test_too_many_members_are_refused(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            for i in range(9):
                archive.writestr(f"{i}.npy", b"")
        assert "found 9 members" in refusal("arrays", tmp_path / "x.npz", Options(experts=8, limits=Limits(members=8)))

    def test_an_archive_in_an_archive_stays_a_member(self, tmp_path):
        inner = io.BytesIO()
        np.savez(inner, a=np.zeros((3, 2, 2), np.int32))
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("a.npy", inner.getvalue())
        assert "wanted an npy file" in refusal("arrays", tmp_path / "x.npz", E8)


class TestNpyHeaders:
    @pytest.mark.parametrize(
        "header",
        [
            "{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000000, 48, 8), }",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (10" + "0" * 400 + ", 48, 8), }",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (-1, 48, 8), }",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (True, 2, 2), }",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (0," + "1," * 70 + "), }",
            "{'descr': '<i4', 'fortran_order': False, 'shape': 5, }",
            "{'descr': '<i4', 'fortran_order': 'no', 'shape': (1, 2, 2), }",
            "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1, 2, 2), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (1, 2, 2), }",
            "{'descr': '<U9', 'fortran_order': False, 'shape': (1, 2, 2), }",
            "{'descr': '<i4', 'shape': (1, 2, 2), }",
            "__import__('os').system('true')",
            "{" * 900,
            "(" * 900 + ")" * 900,
            "",
        ],
    )
    def test_absurd_headers_are_refused(self, tmp_path, header):
        (tmp_path / "a.npy").write_bytes(npy_header(header) + bytes(16))
        refusal("arrays", tmp_path / "a.npy", E8)

    def test_a_header_that_claims_4_gib_is_refused_before_it_is_read(self, tmp_path):
        (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100))
        assert "header of 4294967295 bytes" in refusal("arrays", tmp_path / "a.npy", E8)

    def test_data_too_short_or_too_long_are_refused(self, tmp_path):
        for size in (15, 17, 0):
            (tmp_path / "a.npy").write_bytes(
                npy_header("{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 2), }") + bytes(size)
            )
            assert f"found {size} bytes of data, wanted 16" in refusal("arrays", tmp_path / "a.npy", E8)


class TestText:
    @pytest.mark.parametrize("text", ["!!!!", "AAA", "AAAA=AAA", "AAAA\n", "é", "", 5, ["AA"], {"a": 1}])
    def test_garbage_instead_of_base64_is_refused(self, tmp_path, text):
        line = {"meta_info": {"prompt_tokens": 2, "completion_tokens": 2, "routed_experts": text}}
        assert "line 1" in refusal(
            "sglang", write_lines(tmp_path / "s.jsonl", line), Options(experts=8, top_k=2, num_layers=1)
        )

    @pytest.mark.parametrize(
        "text",
        [
            "nrlre1:int32:1x1:AAAA",
            "nrlre1:float32:1x1x1:AAAA",
            "nrlre1:int32:999999999x999999999x999999999:AAAA",
            "nrlre1:int32:-1x1x1:",
            "nrlre1:int32:1x1x1:AAAA",
            "nrlre2:int32:1x1x1:AAAAAA==",
            "nrlre1:int32:1x1x99999999999999999999:",
            "nrlre1:int8:2x0x2:",
        ],
    )
    def test_damaged_envelopes_are_refused(self, tmp_path, text):
        refusal("nemo-rl", write_lines(tmp_path / "n.jsonl", {"routed_experts": text}), E8)

    @pytest.mark.parametrize("key", ["prompt_tokens", "completion_tokens", "routed_experts_start_len"])
    @pytest.mark.parametrize("value", [-1, 2**40, 1.5, "7", True, [1]])
    def test_absurd_numbers_are_refused(self, tmp_path, key, value):
        meta = {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "routed_experts": b64(np.zeros((3, 1, 2), np.int32)),
            key: value,
        }
        assert key in refusal(
            "sglang", write_lines(tmp_path / "s.jsonl", {"meta_info": meta}), Options(experts=8, top_k=2)
        )

    @pytest.mark.parametrize(
        "raw",
        [
            b"[" * 100000,
            b'{"a":' * 100000,
            b"\xff\xfe{}",
            b"nul",
            b"5",
            b'{"a": 1',
            b'{"a": ' + b"9" * 9000 + b"}",
            b"[1]",
        ],
    )
    @pytest.mark.parametrize("kind", ["sglang", "nemo-rl", "skyrl", "megatron-trace"])
    def test_what_is_no_json_object_is_refused(self, tmp_path, raw, kind):
        (tmp_path / "s.jsonl").write_bytes(raw + b"\n")
        refusal(kind, tmp_path / "s.jsonl", TINY)

    def test_a_line_without_end_is_refused_at_the_limit(self, tmp_path):
        (tmp_path / "s.jsonl").write_bytes(b"{" + b" " * 10000)
        assert "more than 4096 bytes" in refusal("sglang", tmp_path / "s.jsonl", TINY)

    @pytest.mark.parametrize(
        "change",
        [
            {"shape": [3, 1]},
            {"shape": [3, 1, -2]},
            {"shape": [True, 1, 6]},
            {"shape": "x"},
            {"dtype": "float32"},
            {"dtype": 4},
            {"data": "AAA"},
            {"data": None},
            {"shape": [10**9, 10**3, 8]},
        ],
    )
    def test_damaged_skyrl_payloads_are_refused(self, tmp_path, change):
        payload = {"data": b64(np.zeros((3, 1, 2), np.uint8)), "shape": [3, 1, 2], "dtype": "uint8", **change}
        refusal("skyrl", write_lines(tmp_path / "s.jsonl", {"choices": [{"routed_experts": payload}]}), E8)


class TestSafetensors:
    @pytest.mark.parametrize(
        "entry",
        [
            {"dtype": "I32", "shape": [10**12, 48, 8], "data_offsets": [0, 16]},
            {"dtype": "I32", "shape": [1, 2, 2], "data_offsets": [0, 999]},
            {"dtype": "I32", "shape": [1, 2, 2], "data_offsets": [16, 0]},
            {"dtype": "I32", "shape": [1, 2, -2], "data_offsets": [0, 16]},
            {"dtype": ["I32"], "shape": [1, 2, 2], "data_offsets": [0, 16]},
            {"shape": [1, 2, 2], "data_offsets": [0, 16]},
            5,
            None,
            {"dtype": "I32", "shape": 3, "data_offsets": [0, 16]},
            {"dtype": "I32", "shape": [1] * 40, "data_offsets": [0, 4]},
        ],
    )
    def test_damaged_entries_are_refused(self, tmp_path, entry):
        text = json.dumps({"a": entry}).encode()
        (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
        refusal("arrays", tmp_path / "a.safetensors", E8)

    def test_a_header_beyond_the_file_is_refused(self, tmp_path):
        (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}" + bytes(16))
        refusal("arrays", tmp_path / "a.safetensors", E8)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_folders_absent_and_empty_files_are_refused(tmp_path, kind):
    assert str(tmp_path) in refusal(kind, tmp_path, TINY)
    assert "No such file" in refusal(kind, tmp_path / "absent", TINY)
    (tmp_path / "empty").write_bytes(b"")
    refusal(kind, tmp_path / "empty", TINY)


def test_names_of_tensors_cannot_break_the_line(tmp_path):
    np.savez(tmp_path / "a.npz", **{"x\n\x1b[31m": np.zeros((3, 2), np.int32)})
    message = refusal("arrays", tmp_path / "a.npz", E8)
    assert "\x1b" not in message


def test_a_fifo_without_a_writer_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "wanted a file" in refusal("arrays", tmp_path / "pipe", E8)
