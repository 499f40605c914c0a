# SPDX-License-Identifier: Apache-2.0
"""Costs that are derived from a model's configuration instead of a cost file."""
import json
import pathlib

import numpy as np
import pytest

import windowkit
from refusals import assert_refused
from windowkit import run, run_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Two MoE layers of 8 experts, top-2, as the small window has them; the layer before them is dense.
CONFIG = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100,
    "num_attention_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "intermediate_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip


def without_cost(small):
    arguments = small.plan_arguments()
    at = arguments.index("--cost")
    return arguments[:at] + arguments[at + 2 :]


def test_a_configuration_gives_the_cost_and_a_line_says_which(small):
    config = small.write("config.json", CONFIG)
    result = run(*without_cost(small), "--model-config", config)
    (line,) = result.stderr.splitlines()
    assert line.startswith("routepack: cost: mla alpha ")
    assert "3 mla layers, 2 of them MoE" in line
    assert "multi-token prediction" in line
    cost = json.loads(small.plan_path.read_text(encoding="utf-8"))["cost"]
    # One MLA layer: q 64·16 + 16·4·16, kv 64·24 + 16·4·16, o 32·64; router 64·8; a shared expert 3·64·32.
    mla = 64 * 16 + 16 * 64 + 64 * 24 + 16 * 64 + 32 * 64
    tokens = 3 * mla + 3 * 64 * 128 + 2 * (64 * 8 + 3 * 64 * 32) + 64 * 100
    expert = 3 * 64 * 32
    # Pairs: q 4·16 channels, v 4·8; forward 2q + 2v, backward 6q + 4v, half of all pairs, three layers.
    pairs = 3 * (8 * 64 + 6 * 32) / 2
    (stage,) = cost["stages"]
    assert stage["name"] == "mla"
    assert stage["alpha"] == pytest.approx(tokens / expert, rel=1e-12)
    assert stage["beta"] == pytest.approx(small.CAP * pairs / (6 * expert), rel=1e-12)
    assert cost["expert"] == 1.0
    run("verify", small.window, small.plan_path)


def test_parallel_sizes_share_the_work_of_a_cell(small):
    config = small.write("config.json", CONFIG)
    arguments = [*without_cost(small), "--model-config", config]
    run(*arguments)
    (one,) = json.loads(small.plan_path.read_text(encoding="utf-8"))["cost"]["stages"]
    run(*arguments, "--tp", 2, "--etp", 1)
    (two,) = json.loads(small.plan_path.read_text(encoding="utf-8"))["cost"]["stages"]
    assert two["alpha"] == pytest.approx(one["alpha"] / 2)
    assert two["beta"] == pytest.approx(one["beta"] / 2)


def test_a_device_weighs_kinds_of_work(small):
    config = small.write("config.json", CONFIG)
    arguments = [*without_cost(small), "--model-config", config]
    run(*arguments)
    (flops,) = json.loads(small.plan_path.read_text(encoding="utf-8"))["cost"]["stages"]
    result = run(*arguments, "--device", ROOT / "examples/devices/h100-sxm.toml")
    (times,) = json.loads(small.plan_path.read_text(encoding="utf-8"))["cost"]["stages"]
    assert times["alpha"] == pytest.approx(flops["alpha"] * 0.50 / 0.70)
    assert times["beta"] == pytest.approx(flops["beta"] * 0.50 / 0.55)
    assert " ns" in result.stderr


def test_compare_takes_the_same_options(small):
    config = small.write("config.json", CONFIG)
    result = run("compare", *without_cost(small)[1:2], "--cap", small.CAP, "--dp", small.DP, "--ep", small.EP,
                 "--model-config", config, "--json")
    assert result.stderr.startswith("routepack: cost: mla")
    json.loads(result.stdout)


def test_a_preset_gives_the_cost_and_a_cost_file_wins(small):
    rng = np.random.default_rng(3)
    tensors = windowkit.random_window(rng, samples=8, layers=16, experts=64, top_k=8, max_length=20)
    window = small.write("olmoe.safetensors", windowkit.safetensors_bytes(tensors, windowkit.metadata(8)))
    arguments = ["plan", window, "-o", small.plan_path, "--cap", 64, "--dp", 2, "--ep", 2, "--model", "olmoe-1b-7b"]
    assert "olmoe: 16 full layers" in run(*arguments).stderr
    assert json.loads(small.plan_path.read_text(encoding="utf-8"))["cost"]["stages"][0]["name"] == "full"
    assert run(*arguments, "--cost", small.cost).stderr == ""
    assert json.loads(small.plan_path.read_text(encoding="utf-8"))["cost"]["stages"][0]["name"] == "window"


def test_parameter_files_name_the_model(small):
    config = small.write("config.json", CONFIG)
    params = small.write("params.toml", f'model-config = "{config}"\n')
    assert "cost: mla" in run(*without_cost(small), "--params", params).stderr
    assert "model-config" in run("plan", "--dump-params", "--params", params).stdout


def test_a_window_of_another_model_is_refused(small):
    config = small.write("config.json", {**CONFIG, "n_routed_experts": 16})
    assert_refused_after_note(small, [*without_cost(small), "--model-config", config], "window.safetensors",
                              "2 layers of 8 experts", "16 experts")


def assert_refused_after_note(small, arguments, *words):
    result = run(*arguments, status=2)
    assert result.stdout == ""
    note, error = result.stderr.splitlines()
    assert note.startswith("routepack: cost: ")
    assert error.startswith("routepack: error: ")
    for word in words:
        assert word in error, error
    assert not small.plan_path.exists()


@pytest.mark.parametrize("change, words", [
    ({"moe_intermediate_size": None}, ("config.json", "moe_intermediate_size", "--cost-template")),
    ({"model_type": "mystery"}, ("config.json", "mystery", "qwen3_moe", "--cost-template")),
    ({"hidden_size": 0}, ("config.json", "hidden_size")),
])  # fmt: skip
def test_a_configuration_that_says_too_little_is_refused(small, change, words):
    config = small.write("config.json", {**CONFIG, **change})
    assert_refused(small, [*without_cost(small), "--model-config", config], 2, *words)


def test_costs_given_twice_are_refused(small):
    config = small.write("config.json", CONFIG)
    assert_refused(small, [*small.plan_arguments(), "--model-config", config], 2, "--cost and --model-config exclude")
    device = ROOT / "examples/devices/h20.toml"
    assert_refused(small, [*small.plan_arguments(), "--device", device], 2, "--cost and --device exclude")


def test_a_plan_does_not_replace_the_configuration(small):
    config = small.write("config.json", CONFIG)
    before = config.read_bytes()
    arguments = without_cost(small)
    arguments[arguments.index("-o") + 1] = config
    assert "config.json" in run(*arguments, "--model-config", config, status=2).stderr
    assert config.read_bytes() == before


def test_a_missing_or_broken_device_file_is_named(small):
    config = small.write("config.json", CONFIG)
    arguments = [*without_cost(small), "--model-config", config]
    assert_refused(small, [*arguments, "--device", small.folder / "none.toml"], 2, "none.toml")
    assert_refused(small, [*arguments, "--device", small.write("d.toml", 'name = "x"\n')], 2, "d.toml", "reached")


def test_no_cost_at_all_names_the_ways_to_give_one(small):
    assert_refused(small, without_cost(small), 2, "--cost is missing", "--model-config", "--model NAME")
