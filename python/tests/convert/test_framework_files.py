# SPDX-License-Identifier: Apache-2.0
"""Files in data/ were written by the frameworks' own code (data/README.md); their routes are known by formula."""

import pathlib

import numpy as np
import pytest

from convert.framework_routes import EXPERTS, LAYERS, routes_of, tokens_of
from convert.reference import counts_of
from convert.support import check_samples, figures, refusal
from routepack.convert import Options, convert

DATA = pathlib.Path(__file__).parent / "data"
MODEL = Options(experts=EXPERTS, top_k=2, num_layers=LAYERS, layers=(1, 2))
needs_torch = pytest.mark.skipif(not __import__("importlib").util.find_spec("torch"), reason="torch is not installed")


def moe(i, rows=None):
    return routes_of(i)[:rows, 1:]


@needs_torch
def test_slime_rollout_dump_counts_every_sample():
    result = check_samples("slime", DATA / "slime_rollout_7.pt", MODEL, [(tokens_of(i), moe(i)) for i in range(8)])
    assert np.asarray(result.window.ids).tolist() == list(range(8))
    assert np.asarray(result.window.groups).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@needs_torch
@pytest.mark.parametrize("step", [0, 1])
def test_slime_train_dump_takes_its_routes_from_the_rollout_dump(step):
    options = Options(experts=EXPERTS, layers=(1, 2), steps=(step,), rollout=DATA / "slime_rollout_7.pt")
    wanted = [(tokens_of(i), moe(i)) for i in range(4 * step, 4 * step + 4)]
    result = check_samples("slime-train", DATA / "slime_train_7.pt", options, wanted)
    assert np.asarray(result.window.ids).tolist() == list(range(4 * step, 4 * step + 4))


@needs_torch
def test_slime_train_dump_alone_says_where_its_routes_are():
    message = refusal("slime-train", DATA / "slime_train_7.pt", Options(experts=EXPERTS, steps=(0,)))
    assert "replay deletes it" in message and "rollout" in message


@needs_torch
def test_slime_train_dump_of_two_steps_wants_to_know_which():
    assert "2 optimizer steps" in refusal("slime-train", DATA / "slime_train_7.pt", Options(experts=EXPERTS))


def test_sglang_lines_of_three_advertised_types():
    check_samples("sglang", DATA / "sglang.jsonl", MODEL, [(tokens_of(i), moe(i)) for i in range(6)])


def test_nemo_rl_lines_of_three_types_end_in_a_row_without_route():
    options = Options(experts=EXPERTS, layers=(1, 2), num_layers=LAYERS)
    check_samples("nemo-rl", DATA / "nemo_rl.jsonl", options, [(tokens_of(i), moe(i)) for i in range(4)])


def test_skyrl_lines():
    check_samples("skyrl", DATA / "skyrl.jsonl", MODEL, [(tokens_of(i), moe(i)) for i in range(4)])


@needs_torch
def test_skyrl_batch_is_counted_without_the_fake_routes_of_its_padding():
    check_samples("skyrl", DATA / "skyrl_batch.pt", MODEL, [(tokens_of(i), moe(i)) for i in range(4)])


@needs_torch
def test_areal_batch_leaves_out_copied_rows_and_the_invalid_sample():
    wanted = [(tokens_of(i), moe(i) if i != 2 else None) for i in range(4)]
    result = check_samples("areal", DATA / "areal_r3.pt", Options(experts=EXPERTS, layers=(1, 2)), wanted)
    assert result.report.without_routes == 1


@needs_torch
def test_verl_jagged_batch_leaves_out_the_zero_row_of_the_last_token():
    check_samples("verl", DATA / "verl_jagged.pt", MODEL, [(tokens_of(i), moe(i)) for i in range(4)])


def test_megatron_trace_sums_ranks_and_steps_of_decoder_layers():
    paths = sorted((DATA / "megatron_trace").glob("*.jsonl"))
    result = convert("megatron-trace", paths, Options(experts=EXPERTS))
    counts, recorded, lengths = figures(result.window)
    wanted = sum(counts_of(moe(i), experts=EXPERTS) for i in range(4))
    assert lengths is None or lengths.size == 0
    assert np.array_equal(counts[0], wanted)
    assert recorded[0].tolist() == [sum(tokens_of(i) - 1 for i in range(4))] * 2
    assert list(result.window.layer_numbers) == [1, 2]
    first = convert("megatron-trace", paths, Options(experts=EXPERTS, steps=(0,)))
    assert np.array_equal(figures(first.window)[0][0], sum(counts_of(moe(i), experts=EXPERTS) for i in range(2)))


@needs_torch
@pytest.mark.parametrize("name", ["stat", "per_token"])
def test_sglang_recorder_brings_copies_back_to_experts_and_drops_the_dense_layer(name):
    result = convert("sglang-recorder", [DATA / f"sglang_recorder/{name}.pt"], Options(top_k=2))
    counts, recorded, _ = figures(result.window)
    assert np.array_equal(counts[0], sum(counts_of(moe(i), experts=EXPERTS) for i in range(2)))
    assert result.report.dense_layers == 1 and result.report.kind == "aggregate"
    assert recorded[0].tolist() == [sum(tokens_of(i) - 1 for i in range(2))] * 2
