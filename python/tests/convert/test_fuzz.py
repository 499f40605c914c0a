# SPDX-License-Identifier: Apache-2.0
"""Damaged input is refused, never a crash or another exception: hypothesis over every parser.

HYPOTHESIS_PROFILE=long (python/tests/conftest.py) runs a longer campaign.
"""

import io
import json
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import routepack
from convert.framework_routes import EXPERTS as FILE_EXPERTS
from convert.framework_routes import LAYERS as FILE_LAYERS
from convert.support import b64
from routepack.convert import DEMANDS, KINDS, Limits, Options, convert

DATA = pathlib.Path(__file__).parent / "data"
fuzz = settings(suppress_health_check=list(HealthCheck))
LIMITS = Limits(sample=1 << 20, inflate_free=1 << 16, pickle=1 << 20)
OPTIONS = Options(experts=8, top_k=2, limits=LIMITS)


def survives(kind, data, options=OPTIONS):
    """Converted, or refused with one line of an exception that the package exports."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "input")
        path.write_bytes(data)
        try:
            result = convert(kind, [path], options)
        except (ValueError, OSError) as error:
            assert "\n" not in str(error)
            assert isinstance(error, routepack.Error), repr(error)
            return
        assert result.report.samples >= 1


@st.composite
def damaged(draw, whole):
    """Bytes of a good file with a few places changed, cut, or put in twice."""
    raw = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        action = draw(st.sampled_from(["set", "flip", "cut", "insert", "number"]))
        if action == "cut":
            del raw[at : at + draw(st.integers(1, 64))]
        elif action == "insert":
            raw[at:at] = draw(st.binary(max_size=16))
        elif action == "number" and len(raw) >= at + 4:
            raw[at : at + 4] = draw(st.sampled_from([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"9999"]))
        elif raw:
            raw[at] = draw(st.integers(0, 255)) if action == "set" else raw[at] ^ (1 << draw(st.integers(0, 7)))
    return bytes(raw)


def seed(kind):
    """A small good file of the kind."""
    routes = np.arange(3 * 4 * 2 * 2).reshape(3, 4, 2, 2) % 8
    mask = np.array([[0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]])
    buffer = io.BytesIO()
    if kind == "npy":
        np.save(buffer, routes[0].astype(np.int16))
    elif kind == "npz":
        np.savez(buffer, routed_experts=routes, attention_mask=mask, r3_routing_valid=np.array([1, 0, 1]))
    elif kind == "packed":
        np.savez_compressed(
            buffer, routed_experts=routes.astype(np.uint8), attention_mask=mask, input_lengths=np.array([3, 4, 3])
        )
    elif kind == "safetensors":
        import struct

        text = json.dumps(
            {"routed_experts": {"dtype": "I64", "shape": [3, 4, 2, 2], "data_offsets": [0, 384]}}
        ).encode()
        return struct.pack("<Q", len(text)) + text + routes.astype("<i8").tobytes()
    return buffer.getvalue()


@pytest.mark.parametrize("container", ["npy", "npz", "packed", "safetensors"])
@fuzz
@given(data=st.data())
def test_array_containers(container, data):
    raw = data.draw(damaged(seed(container)))
    survives(data.draw(st.sampled_from(["arrays", "verl", "areal", "vllm", "nemo-rl", "skyrl"])), raw)


@pytest.mark.parametrize("name", ["skyrl_batch.pt", "sglang_recorder/per_token.pt"])
@fuzz
@given(data=st.data())
def test_further_torch_archives(name, data):
    pytest.importorskip("torch")
    kind = "skyrl" if name == "skyrl_batch.pt" else "sglang-recorder"
    survives(kind, data.draw(damaged((DATA / name).read_bytes())))


def npz_bytes(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


ROUTES = np.arange(1, 3 * 4 * 2 * 2 + 1).reshape(3, 4, 2, 2) % 8
FULL = Options(experts=FILE_EXPERTS, top_k=2, num_layers=FILE_LAYERS, layers=(1, 2), limits=LIMITS)
TRAIN = Options(experts=FILE_EXPERTS, layers=(1, 2), steps=(0,), rollout=DATA / "slime_rollout_7.pt", limits=LIMITS)
#: A good file of every kind, and what it is read with.
GOOD_FILES = {
    "slime": ((DATA / "slime_rollout_7.pt").read_bytes(), FULL),
    "slime-train": ((DATA / "slime_train_7.pt").read_bytes(), TRAIN),
    "sglang": ((DATA / "sglang.jsonl").read_bytes(), FULL),
    "vllm": (
        npz_bytes(
            prompt_routed_experts=ROUTES[0, :2].astype(np.int16),
            routed_experts=ROUTES[1].astype(np.int16),
            prompt_token_ids=np.arange(2),
            token_ids=np.arange(5),
        ),
        OPTIONS,
    ),
    "verl": (npz_bytes(routed_experts=ROUTES.astype(np.int16), attention_mask=np.ones((3, 4), dtype=int)), OPTIONS),
    "verl jagged": ((DATA / "verl_jagged.pt").read_bytes(), FULL),
    "nemo-rl": ((DATA / "nemo_rl.jsonl").read_bytes(), FULL),
    "areal": ((DATA / "areal_r3.pt").read_bytes(), Options(experts=FILE_EXPERTS, layers=(1, 2), limits=LIMITS)),
    "skyrl": ((DATA / "skyrl.jsonl").read_bytes(), FULL),
    "arrays": (npz_bytes(routed_experts=ROUTES.astype(np.uint8), lengths=np.array([4, 3, 2])), OPTIONS),
    "megatron-trace": (
        (DATA / "megatron_trace/router_trace_rank0.jsonl").read_bytes(),
        Options(experts=FILE_EXPERTS, limits=LIMITS),
    ),
    "sglang-recorder": ((DATA / "sglang_recorder/stat.pt").read_bytes(), Options(top_k=2, limits=LIMITS)),
}


def good_file(name):
    raw, options = GOOD_FILES[name]
    if raw[:2] == b"PK" and b"data.pkl" in raw:
        pytest.importorskip("torch")
    return name.split()[0], raw, options


def test_every_kind_has_a_good_file():
    assert {name.split()[0] for name in GOOD_FILES} == {*KINDS, *DEMANDS}


@pytest.mark.parametrize("name", GOOD_FILES)
def test_a_good_file_is_converted(name, tmp_path):
    kind, raw, options = good_file(name)
    (tmp_path / "input").write_bytes(raw)
    assert np.asarray(convert(kind, [tmp_path / "input"], options).window.counts).sum() > 0


@pytest.mark.parametrize("name", GOOD_FILES)
@fuzz
@given(data=st.data())
def test_a_damaged_file_of_every_kind_is_converted_or_refused(name, data):
    kind, raw, options = good_file(name)
    survives(kind, data.draw(damaged(raw)), options)


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
GOOD = b64(np.arange(12, dtype=np.int32) % 8)


@fuzz
@given(
    meta=st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": st.integers(0, 5) | VALUES,
            "completion_tokens": st.integers(0, 5) | VALUES,
            "routed_experts": st.just(GOOD) | st.text(max_size=20) | VALUES,
            "routed_experts_dtype": st.sampled_from(["int32", "uint8", "uint16", "f4"]) | VALUES,
            "routed_experts_start_len": st.integers(0, 5) | VALUES,
        },
    ),
    extra=st.dictionaries(st.sampled_from(["index", "group_index", "choices", "usage"]), VALUES),
)
def test_sglang_objects_of_any_values(meta, extra):
    survives("sglang", json.dumps({"meta_info": meta, **extra}).encode())
    survives("sglang", json.dumps({"choices": [{"sglext": meta}], "usage": meta}).encode())


@fuzz
@given(
    payload=VALUES
    | st.lists(st.lists(st.lists(st.integers(-2, 9), max_size=3), max_size=3), max_size=3)
    | st.text(max_size=20).map(lambda t: "nrlre1:" + t),
    tokens=st.lists(st.integers(0, 9), max_size=5) | VALUES,
)
def test_nemo_rl_objects_of_any_values(payload, tokens):
    survives("nemo-rl", json.dumps({"routed_experts": payload, "token_ids": tokens}).encode())
    item = {"routed_experts": payload, "prompt_token_ids": tokens, "generation_token_ids": tokens}
    survives("nemo-rl", json.dumps({"response": {"output": [item, payload]}}).encode())


@fuzz
@given(
    payload=VALUES
    | st.fixed_dictionaries(
        {
            "data": st.just(GOOD) | VALUES,
            "shape": st.lists(st.integers(-1, 9), min_size=3, max_size=3) | VALUES,
            "dtype": st.sampled_from(["int32", "uint8", "int16"]) | VALUES,
        }
    ),
    tokens=VALUES,
)
def test_skyrl_objects_of_any_values(payload, tokens):
    survives(
        "skyrl",
        json.dumps(
            {"prompt_token_ids": tokens, "choices": [{"token_ids": tokens, "routed_experts": payload}]}
        ).encode(),
    )


@fuzz
@given(
    record=st.fixed_dictionaries(
        {
            "stage": st.just("pre_dispatch"),
            "block": st.just("decoder"),
            "layer": st.integers(0, 3) | VALUES,
            "topk": st.just(2) | VALUES,
            "step": st.just(0) | VALUES,
            "num_tokens": st.integers(0, 3) | VALUES,
            "top_indices": st.lists(st.lists(st.integers(-2, 9), min_size=2, max_size=2), max_size=3) | VALUES,
        }
    )
)
def test_megatron_records_of_any_values(record):
    survives("megatron-trace", json.dumps(record).encode())


@fuzz
@given(
    tokens=VALUES | st.just([0] * 4),
    routes=VALUES | st.just([[[1, 2]] * 2] * 3),
    shard=st.dictionaries(
        st.sampled_from(["data_parallel_rank", "partition", "micro_batch_indices", "num_microbatches"]),
        VALUES | st.just([0]) | st.just([[0]]),
    ),
)
def test_slime_objects_of_any_values(tokens, routes, shard):
    torch = pytest.importorskip("torch")
    sample = {"tokens": tokens, "rollout_routed_experts": routes, "rollout_position": 0, "group_index": routes}
    buffer = io.BytesIO()
    try:
        torch.save(
            {"format_version": 2, "samples": [sample, tokens], "dp_shards": [{"data_parallel_rank": 0, **shard}]},
            buffer,
        )
    except Exception:  # what torch itself cannot save
        return
    survives("slime", buffer.getvalue())
    survives("slime-train", buffer.getvalue())


@fuzz
@given(kind=st.sampled_from(sorted([*KINDS, *DEMANDS])), raw=st.binary(max_size=200))
def test_any_bytes(kind, raw):
    survives(kind, raw)
