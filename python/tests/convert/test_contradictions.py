# SPDX-License-Identifier: Apache-2.0
"""Tensors and records that contradict each other, and options that fit no file."""

import sys

import numpy as np
import pytest

from convert.reference import counts_of
from convert.support import E8, b64, check_samples, figures, random_routes, refusal, write_lines
from routepack.convert import Options, convert


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def routes(shape, dtype=np.int16):
    return (np.arange(np.prod(shape)) % 8).reshape(shape).astype(dtype)


MASK = np.ones((2, 5), np.int64)
BATCH = routes((2, 5, 3, 2))


@pytest.mark.parametrize(
    ("kind", "arrays", "message"),
    [
        ("verl", {"routed_experts": BATCH[0], "attention_mask": MASK}, "wanted [batch, width, layers, top_k]"),
        (
            "verl",
            {"routed_experts": BATCH, "attention_mask": MASK[:, :4]},
            "attention_mask: found shape [2, 4], wanted [2, 5]",
        ),
        ("verl", {"routed_experts": BATCH, "attention_mask": MASK * 0}, "found no token"),
        ("verl", {"routed_experts": BATCH}, "wanted attention_mask"),
        ("verl", {"routed_experts.values": BATCH[0]}, "without offsets"),
        ("verl", {"routed_experts.values": BATCH, "offsets": np.array([0, 5])}, "wanted [tokens, layers, top_k]"),
        ("verl", {"routed_experts.values": BATCH[0], "offsets": np.array([0, 4])}, "no ascending numbers from 0 to 5"),
        ("verl", {"routed_experts.values": BATCH[0], "offsets": np.array([0, 0, 5])}, "no ascending numbers"),
        ("verl", {"routed_experts.values": BATCH[0], "offsets": np.array([[0, 5]])}, "wanted integers [any]"),
        ("areal", {"routed_experts": BATCH, "attention_mask": MASK}, "wanted r3_routing_valid"),
        ("areal", {"routed_experts": BATCH[0].reshape(5, 6)}, "without token counts"),
        (
            "areal",
            {"routed_experts": BATCH[0].reshape(5, 6), "num_tokens": np.array(9)},
            "found 5 rows, wanted at least 8",
        ),
        (
            "areal",
            {"routed_experts": BATCH[0].reshape(5, 6), "num_tokens": np.array(1)},
            "no routes in any of 1 samples",
        ),
        ("arrays", {"routed_experts": BATCH}, "wanted attention_mask, lengths or offsets"),
        ("arrays", {"routed_experts": BATCH, "lengths": np.array([5, 6])}, "lengths: found 6, wanted 1 to 5"),
        ("arrays", {"routed_experts": BATCH, "lengths": np.array([5])}, "wanted integers [2]"),
        ("arrays", {"a": BATCH}, "wanted [rows, layers, top_k]"),
        ("arrays", {}, "found no tensor of integers"),
        ("nemo-rl", {"routed_experts": BATCH}, "wanted input_lengths"),
        ("nemo-rl", {"routed_experts": BATCH, "input_lengths": np.array([0, 5])}, "found 0, wanted 1 to 5"),
        (
            "skyrl",
            {"rollout_expert_indices": BATCH, "attention_mask": MASK, "router_padding_mask": MASK[:1]},
            "router_padding_mask",
        ),
        ("vllm", {"routed_experts": BATCH[0], "prompt_routed_experts": BATCH[1][:, :2]}, "prompt_routed_experts"),
        ("vllm", {"routed_experts": BATCH[0], "token_ids": MASK}, "wanted [tokens]"),
        ("vllm", {"routed_experts": BATCH}, "wanted [rows, layers, top_k]"),
        ("arrays", {"a": BATCH[0][:, :, :0]}, "at least one layer and one expert"),
        ("arrays", {"a": np.zeros((0, 3, 2), np.int32)}, "no recorded route in any layer"),
    ],
)
def test_tensors_that_contradict_each_other(tmp_path, kind, arrays, message):
    assert message in refusal(kind, npz(tmp_path / "x.npz", **arrays), Options(experts=8, top_k=2))


def test_more_experts_per_token_than_experts(tmp_path):
    assert "wanted at most 4" in refusal("arrays", npz(tmp_path / "x.npz", a=routes((3, 2, 6))), Options(experts=4))


def test_response_masks_that_do_not_fit(tmp_path):
    options = Options(experts=8, align="response")
    path = npz(tmp_path / "x.npz", rollout_expert_indices=BATCH, attention_mask=MASK, response_mask=MASK[:, :4])
    assert "response_mask: found shape [2, 4]" in refusal("skyrl", path, options)
    path = npz(tmp_path / "y.npz", rollout_expert_indices=BATCH, attention_mask=MASK[:, :3], response_mask=MASK)
    assert "found 5 tokens, wanted at most 3" in refusal("skyrl", path, options)


def test_segments_that_contradict_each_other(rng, tmp_path):
    def line(layers, tokens, start=0, **more):
        sent = random_routes(rng, tokens - 1 - start, layers, 8, 2)
        meta = {
            "prompt_tokens": 2,
            "completion_tokens": tokens - 2,
            "routed_experts": b64(sent),
            "routed_experts_start_len": start,
        }
        return {"r": 1, "meta_info": {**meta, **more}}

    options = Options(experts=8, top_k=2, join="r")
    path = tmp_path / "s.jsonl"
    assert "found 6 tokens in a later segment, wanted at least 9" in refusal(
        "sglang", write_lines(path, line(2, 9), line(2, 6)), options
    )
    assert "found [3, 2] layers and top_k, wanted [2, 2]" in refusal(
        "sglang", write_lines(path, line(2, 9), line(3, 12, 8)), options
    )
    assert "routed_experts_start_len 9, wanted less than 9" in refusal(
        "sglang", write_lines(path, line(2, 9, 7, routed_experts_start_len=9)), options
    )
    assert "wanted a number or a name to join by" in refusal(
        "sglang", write_lines(path, {**line(2, 9), "r": None}), options
    )
    ended = {"r": 1, "meta_info": {"prompt_tokens": 9, "completion_tokens": 3}}  # the last segment lost its routes
    result = convert("sglang", [write_lines(path, line(2, 9), ended)], options)
    assert figures(result.window)[1].tolist() == [[8, 8]] and figures(result.window)[2].tolist() == [12]


def test_spread_fills_rows_in_front_of_a_late_start_and_copies(rng, tmp_path):
    sent = random_routes(rng, 6, 2, 8, 2)
    meta = {"prompt_tokens": 8, "completion_tokens": 4, "routed_experts": b64(sent), "routed_experts_start_len": 5}
    options = Options(experts=8, top_k=2, missing="spread")
    result = convert("sglang", [write_lines(tmp_path / "s.jsonl", {"meta_info": meta})], options)
    counts, recorded, lengths = figures(result.window)
    assert lengths.tolist() == [12] and recorded.tolist() == [[12, 12]]
    assert np.abs(counts[0] - counts_of(sent, experts=8) * 2).max() <= 1
    batch = np.concatenate([sent, sent[-1:]])[None]  # AReaL: the last row is a copy
    path = npz(
        tmp_path / "a.npz",
        routed_experts=batch,
        attention_mask=np.ones((1, 7)).astype(int),
        r3_routing_valid=np.ones(1, bool),
    )
    counts, recorded, _ = figures(convert("areal", [path], options).window)
    assert recorded.tolist() == [[7, 7]] and np.abs(counts[0] - counts_of(sent, experts=8) * 7 / 6).max() <= 1


class TestDemand:
    def record(self, layer, ids, **more):
        return {
            "step": 0,
            "stage": "pre_dispatch",
            "block": "decoder",
            "layer": layer,
            "rank": 0,
            "num_tokens": len(ids),
            "topk": 2,
            "top_indices": ids,
            **more,
        }

    def test_named_layers_are_picked_by_their_numbers(self, tmp_path):
        path = write_lines(tmp_path / "t.jsonl", *(self.record(layer, [[layer, 7]]) for layer in (5, 3, 4)))
        result = convert("megatron-trace", [path], Options(experts=8, layers=(3, 5)))
        assert list(result.window.layer_numbers) == [3, 5]
        assert figures(result.window)[0][0].argmax(axis=1).tolist() == [3, 5]
        assert "no record of layer 6" in refusal("megatron-trace", path, Options(experts=8, layers=(3, 6)))

    def test_files_of_other_layers_are_refused(self, tmp_path):
        one = write_lines(tmp_path / "t.jsonl", self.record(1, [[1, 2]]))
        two = write_lines(tmp_path / "u.jsonl", self.record(2, [[1, 2]]))
        message = refusal("megatron-trace", [one, two], E8)
        assert "u.jsonl" in message and "1 layers ([2])" in message and "as in" in message

    def test_top_k_must_agree(self, tmp_path):
        one = write_lines(tmp_path / "t.jsonl", self.record(1, [[1, 2]]), self.record(1, [[1, 2, 3]], topk=3))
        assert "topk: found 3, wanted 2" in refusal("megatron-trace", one, E8)
        path = write_lines(tmp_path / "u.jsonl", self.record(1, [[1, 2]]))
        assert "found 2, wanted 4" in refusal("megatron-trace", path, Options(experts=8, top_k=4))

    def test_a_trace_of_mtp_layers_alone_is_refused(self, tmp_path):
        path = write_lines(tmp_path / "t.jsonl", self.record(1, [[1, 2]], block="mtp"))
        assert "no record of a decoder layer" in refusal("megatron-trace", path, E8)

    def save(self, tmp_path, value):
        torch = pytest.importorskip("torch")
        torch.save(
            {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in value.items()}, tmp_path / "r.pt"
        )
        return tmp_path / "r.pt"

    def test_recorder_counts_of_all_layers_are_cut_to_the_named_ones(self, tmp_path):
        counts = np.arange(2 * 3 * 4).reshape(2, 3, 4)
        path = self.save(tmp_path, {"rank": 0, "logical_count": counts})
        result = convert("sglang-recorder", [path], Options(top_k=2, layers=(1, 2), num_layers=3))
        assert np.array_equal(figures(result.window)[0][0], counts.sum(axis=0)[1:])
        assert "wanted 5" in refusal("sglang-recorder", path, Options(experts=5, top_k=2))
        assert "option top_k" in refusal("sglang-recorder", path, Options())
        assert "found 3 layers, wanted 9" in refusal("sglang-recorder", path, Options(top_k=2, num_layers=9))

    def test_counts_that_are_no_whole_tokens_have_no_recorded_rows(self, tmp_path):
        path = self.save(tmp_path, {"logical_count": np.array([[[1, 2]]])})
        assert convert("sglang-recorder", [path], Options(top_k=2)).window.recorded is None

    def test_per_pass_files_have_counts_of_slots_only(self, tmp_path):
        torch = pytest.importorskip("torch")
        record = {"global_physical_count": torch.tensor([[1, 2, 3]]), "forward_pass_id": 0}
        path = self.save(tmp_path, {"records": [record, record], "last_physical_to_logical_map": np.array([[1, 0, 1]])})
        assert figures(convert("sglang-recorder", [path], Options(top_k=2)).window)[0].tolist() == [[[4, 8]]]

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"logical_count": np.array([[[-1, 2]]])}, "wanted counts"),
            ({"logical_count": np.array([[1, 2]])}, "wanted integers of 3 dimensions"),
            ({"logical_count": "x"}, "found a str, wanted a tensor"),
            ({"logical_count": np.full((1, 1, 2), 2**40)}, "convert fewer steps"),
            ({"other": 1}, "wanted a recorder file"),
            ({"records": []}, "last_physical_to_logical_map"),
            ({"records": [], "last_physical_to_logical_map": np.array([[0, 1]])}, "wanted a list of records"),
            ({"records": [{}], "last_physical_to_logical_map": np.array([[0, 9]])}, "found expert 9"),
            ({"records": [{}], "last_physical_to_logical_map": np.array([[0, 1]])}, "wanted a tensor"),
        ],
    )
    def test_damaged_recorder_files_are_refused(self, tmp_path, value, message):
        assert message in refusal("sglang-recorder", self.save(tmp_path, value), Options(experts=2, top_k=2))

    @pytest.mark.parametrize("wrong", [5, -2])
    def test_slots_beyond_the_map_are_refused(self, tmp_path, wrong):
        torch = pytest.importorskip("torch")
        record = {"topk_ids_of_layer": torch.tensor([[[0, wrong]]])}
        path = self.save(tmp_path, {"records": [record], "last_physical_to_logical_map": np.array([[0, 1]])})
        assert f"found slot {wrong}" in refusal("sglang-recorder", path, Options(top_k=2))


class TestTorch:
    def test_without_torch_the_message_says_so(self, tmp_path, monkeypatch):
        torch = pytest.importorskip("torch")
        torch.save({"samples": []}, tmp_path / "d.pt")
        monkeypatch.setitem(sys.modules, "torch", None)
        assert "needs torch" in refusal("slime", tmp_path / "d.pt", E8)

    def test_tensors_of_other_layouts_and_types_are_refused_where_they_are_asked_for(self, rng, tmp_path):
        torch = pytest.importorskip("torch")
        sent = random_routes(rng, 5, 3, 8, 2)
        good = {"routed_experts": torch.tensor(sent)[None], "attention_mask": torch.ones(1, 5, dtype=torch.int64)}
        extra = {
            "log_probs": torch.zeros(3),
            "sparse": torch.eye(3).to_sparse(),
            "names": ["x"],
            "half": torch.ones(2).bfloat16(),
        }
        torch.save({**good, **extra}, tmp_path / "d.pt")
        check_samples("verl", tmp_path / "d.pt", E8, [(5, sent[:4])])
        torch.save({**good, "routed_experts": good["routed_experts"].to_sparse()}, tmp_path / "e.pt")
        assert "e.pt, routed_experts: found a tensor without plain values" in refusal("verl", tmp_path / "e.pt", E8)
        torch.save({**good, "routed_experts": good["routed_experts"].float()}, tmp_path / "f.pt")
        assert "found float32, wanted integer" in refusal("verl", tmp_path / "f.pt", E8)
        torch.save([1, 2], tmp_path / "g.pt")
        assert "wanted a dict of tensors" in refusal("verl", tmp_path / "g.pt", E8)
        torch.save(torch.tensor(sent), tmp_path / "h.pt")
        check_samples("arrays", tmp_path / "h.pt", E8, [(6, sent)])

    def test_nested_tensors_of_the_old_layout_are_refused(self, tmp_path):
        torch = pytest.importorskip("torch")
        old = torch.nested.nested_tensor(
            [torch.ones(2, 1, 1, dtype=torch.int32), torch.ones(3, 1, 1, dtype=torch.int32)]
        )
        torch.save({"routed_experts": old}, tmp_path / "d.pt")
        refusal("verl", tmp_path / "d.pt", E8)

    @pytest.mark.parametrize(
        "sample",
        [
            {"tokens": None},
            {"tokens": [1, 2], "rollout_routed_experts": "x"},
            {"tokens": [1, 2], "rollout_routed_experts": [[[1, 2]]] * 9},
            {"tokens": [1, 2], "rollout_routed_experts": [[[1, 2], [1]]]},
            {"tokens": [1, 2], "rollout_routed_experts": [[[1, 2]], 5]},
            {"tokens": [1, 2], "rollout_routed_experts": [[[2**70, 2]]]},
            {"tokens": [1, 2], "rollout_routed_experts": [5]},
            {"tokens": []},
        ],
    )
    def test_damaged_slime_samples_are_refused(self, tmp_path, sample):
        torch = pytest.importorskip("torch")
        torch.save({"samples": [sample]}, tmp_path / "d.pt")
        assert "d.pt: sample 0" in refusal("slime", tmp_path / "d.pt", E8)

    def test_tokens_of_two_dimensions_are_refused(self, tmp_path):
        torch = pytest.importorskip("torch")
        torch.save({"samples": [{"tokens": torch.ones(2, 2)}]}, tmp_path / "d.pt")
        assert "wanted [tokens]" in refusal("slime", tmp_path / "d.pt", E8)


def test_no_input_and_an_unknown_kind_are_refused(tmp_path):
    assert "no input file" in refusal("slime", [], E8)
    assert "wanted one of slime, " in refusal("others", tmp_path, E8)


def test_experts_are_asked_for(tmp_path):
    assert "option experts" in refusal("arrays", npz(tmp_path / "x.npz", a=routes((3, 2, 2))), Options())
