# SPDX-License-Identifier: Apache-2.0
"""`routepack convert`: options, exit status, one line per error, and outputs that appear whole or not at all."""

import json
import pathlib
import re

import numpy as np
import pytest

import routepack
from convert.framework_routes import EXPERTS, routes_of, tokens_of
from convert.reference import counts_of
from routepack.convert import DEMANDS, KINDS, main
from routepack.convert.options import Options, parse_numbers, read_map, with_model_config

DATA = pathlib.Path(__file__).parent / "data"
PAGE = pathlib.Path(__file__).parents[3] / "docs/convert.md"


def run(capsys, *arguments, status=0):
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert code == status, err
    if status:
        assert out == "" and err.count("\n") == 1 and err.startswith("routepack convert: ")
    return out, err


def test_a_window_is_written_and_reported(tmp_path, capsys):
    window = tmp_path / "w.safetensors"
    out, err = run(
        capsys, "sglang", DATA / "sglang.jsonl", "-o", window, "--experts", 8, "--top-k", 2, "--num-layers", 3, "--json"
    )
    report = json.loads(out)
    assert err == "" and report["samples"] == 6 and report["dense_layers"] == 1
    assert report["recorded"] == 2 * sum(tokens_of(i) - 1 for i in range(6)) and report["missing"] == 2 * 6
    loaded = routepack.Window.load(window)
    assert list(loaded.layer_numbers) == [1, 2]
    for i in range(6):
        assert np.array_equal(np.asarray(loaded.counts)[i], counts_of(routes_of(i)[:, 1:], experts=EXPERTS))
    table, _ = run(
        capsys, "sglang", DATA / "sglang.jsonl", "-o", window, "--experts", 8, "--top-k", 2, "--num-layers", 3
    )
    assert re.search(r"^samples +6$", table, re.M)


def test_several_files_follow_one_another(tmp_path, capsys):
    window = tmp_path / "w.safetensors"
    run(
        capsys,
        "nemo-rl",
        DATA / "nemo_rl.jsonl",
        DATA / "nemo_rl.jsonl",
        "-o",
        window,
        "--experts",
        8,
        "--model",
        "toy",
    )
    loaded = routepack.Window.load(window)
    assert np.asarray(loaded.lengths).tolist() == [tokens_of(i) for i in range(4)] * 2
    assert loaded.model == "toy"


def test_slime_window_and_plan_of_one_step(tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "cost.toml").write_text('expert = 2.0\n[[stage]]\nname = "full"\nalpha = 1.0\nbeta = 2.0\n')
    window, plan = tmp_path / "w.safetensors", tmp_path / "p.json"
    run(
        capsys,
        "slime-train",
        DATA / "slime_train_7.pt",
        "--rollout",
        DATA / "slime_rollout_7.pt",
        "--step",
        1,
        "--experts",
        8,
        "--layers",
        "1-2",
        "-o",
        window,
        "--plan-out",
        plan,
        "--ep",
        2,
        "--shards",
        "[[0],[1]]",
        "--cost",
        tmp_path / "cost.toml",
    )
    record = routepack.Plan.load(plan)
    assert record.verify(routepack.Window.load(window)) == []
    assert json.loads(plan.read_text())["cost"] == {
        "stages": [{"name": "full", "alpha": 1.0, "beta": 2.0}],
        "expert": 2.0,
    }
    assert json.loads(plan.read_text())["window"]["fingerprint"].startswith("xxh3:")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("sglang",),
        ("other", "x", "-o", "w"),
        ("sglang", "x", "-o", "w", "--experts", "many"),
        ("sglang", "x", "-o", "w", "--experts", "0"),
        ("sglang", "x", "-o", "w", "--experts", "8", "--top-k", "9"),
        ("sglang", "x", "-o", "w", "--exp", "8"),
        ("sglang", "x", "-o", "w", "--layers", "3-1"),
        ("sglang", "x", "-o", "w", "--layers", "0,0"),
        ("sglang", "x", "-o", "w", "--layers", "a"),
        ("sglang", "x", "-o", "w", "--layers", "0-99999999999"),
        ("sglang", "x", "-o", "w", "--layers", "0-5", "--num-layers", "5"),
        ("sglang", "x", "-o", "w", "--max-sample-bytes", "0"),
        ("sglang", "x", "-o", "w", "--missing", "guess"),
        ("sglang", "x", "-o", "w", "--plan-out", "p"),
        ("slime-train", "x", "-o", "w", "--plan-out", "p", "--ep", "2"),
        ("slime-train", "x", "-o", "w", "--plan-out", "p", "--ep", "2", "--cost", "absent.toml"),
        ("sglang", "x", "-o", "w", "--model-config", "absent.json"),
        ("sglang", "x", "-o", "w", "--physical-to-logical", "absent.json"),
        ("sglang", "x", "-o", "x", "--experts", "8"),
        ("sglang", "x", "-o", "w"),
    ],
)
def test_wrong_usage_is_status_2_and_one_line(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text('{"meta_info": {"prompt_tokens": 1, "completion_tokens": 1}}\n')
    run(capsys, *arguments, status=2)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_damaged_file_leaves_the_old_window_alone(tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text((DATA / "sglang.jsonl").read_text() + "{}\n")
    (tmp_path / "w").write_text("old")
    _, err = run(capsys, "sglang", tmp_path / "bad.jsonl", "-o", tmp_path / "w", "--experts", 8, "--top-k", 2, status=2)
    assert "bad.jsonl: line 7, meta_info" in err
    assert (tmp_path / "w").read_text() == "old"


def test_an_output_that_cannot_be_written_is_status_2(tmp_path, capsys):
    _, err = run(capsys, "nemo-rl", DATA / "nemo_rl.jsonl", "-o", tmp_path / "no/w", "--experts", 8, status=2)
    assert "no/w" in err


def test_help_names_every_kind_and_the_page_names_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    page = PAGE.read_text()
    for kind in (*KINDS, *DEMANDS):
        assert f"  {kind} " in text and f"`{kind}`" in page
    for option in set(re.findall(r"--[a-z][a-z-]+", text)) - {
        "--save-debug-rollout-data",
        "--save-debug-train-data",
        "--help",
    }:
        assert f"`{option}" in page, option


class TestModelConfig:
    def fill(self, tmp_path, config, **given):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return with_model_config(Options(**given), tmp_path / "config.json")

    def test_deepseek(self, tmp_path):
        config = {
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
        }
        options = self.fill(tmp_path, config)
        assert (options.experts, options.top_k, options.num_layers, options.layers) == (256, 8, 61, tuple(range(3, 61)))

    def test_qwen_with_dense_layers_between(self, tmp_path):
        config = {
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 8,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        }
        assert self.fill(tmp_path, config).layers == (1, 5, 7)

    def test_a_list_of_frequencies_and_a_nested_text_config(self, tmp_path):
        config = {"text_config": {"num_local_experts": 4, "num_hidden_layers": 3, "moe_layer_freq": [0, 1, 1]}}
        assert self.fill(tmp_path, config).layers == (1, 2)

    def test_what_the_caller_says_stays(self, tmp_path):
        options = self.fill(tmp_path, {"num_experts": 60, "num_hidden_layers": 8}, experts=64, layers=(2, 3))
        assert options.experts == 64 and options.layers == (2, 3)

    @pytest.mark.parametrize(
        "config", [[], 5, {"num_hidden_layers": 3, "moe_layer_freq": [1]}, {"num_hidden_layers": 10**9}]
    )
    def test_damaged_configurations_are_refused(self, tmp_path, config):
        with pytest.raises(routepack.FormatError, match="config.json"):
            self.fill(tmp_path, config)


def test_layer_lists():
    assert parse_numbers("3-5, 7", "layers") == (3, 4, 5, 7)


@pytest.mark.parametrize("value", [5, [], [[]], [[0, 1], [0]], [[0, "1"]], [[0, -1]], {"a": 1}])
def test_damaged_maps_are_refused(tmp_path, value):
    (tmp_path / "m.json").write_text(json.dumps(value))
    with pytest.raises(routepack.FormatError, match="m.json"):
        read_map(tmp_path / "m.json")


def test_a_map_may_be_a_placement_file(tmp_path):
    (tmp_path / "m.json").write_text(json.dumps({"format": "routepack.placement/1", "physical_to_logical": [[1, 0]]}))
    assert read_map(tmp_path / "m.json").tolist() == [[1, 0]]
