# SPDX-License-Identifier: Apache-2.0
"""What real dumps hold beside routes, one trap a test. Arrays are built after the frameworks' documented structure."""

import numpy as np
import pytest

from convert.reference import counts_of
from convert.support import E8, b64, check_samples, figures, random_routes, refusal, write_lines
from routepack.convert import Limits, Options, convert


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def left_padded(rng, lengths, width, layers=2, experts=8, top_k=2, pad=0):
    """(routes [N, width, layers, k], attention [N, width], per sample routes [t-1])"""
    attention = np.zeros((len(lengths), width), dtype=np.int64)
    batch = np.full((len(lengths), width, layers, top_k), pad, dtype=np.int16)
    real = []
    for i, t in enumerate(lengths):
        first = i % (width - t + 1)
        attention[i, first : first + t] = 1
        real.append(random_routes(rng, t - 1, layers, experts, top_k, np.int16))
        batch[i, first : first + t - 1] = real[-1]
        batch[i, first + t - 1] = 0
    return batch, attention, real


class TestRowsWithoutRoutes:
    def test_zero_rows_are_not_expert_0(self, rng, tmp_path):
        routes = random_routes(rng, 12, 2, 8, 2)
        routes[[3, 7]] = 0
        path = npz(tmp_path / "w.npz", sample=routes)
        result = check_samples("arrays", path, E8, [(13, np.delete(routes, [3, 7], axis=0))])
        assert result.report.missing == 2 * 3  # two rows and the last token, at both layers

    def test_rows_of_minus_1_are_not_counted(self, rng, tmp_path):
        routes = random_routes(rng, 12, 2, 8, 2)
        routes[5:] = -1
        check_samples("arrays", npz(tmp_path / "w.npz", sample=routes), E8, [(13, routes[:5])])

    def test_a_row_that_is_minus_1_in_part_is_refused(self, rng, tmp_path):
        routes = random_routes(rng, 12, 2, 8, 2)
        routes[5, 1, 1] = -1
        message = refusal("arrays", npz(tmp_path / "w.npz", sample=routes), E8)
        assert "w.npz: sample 0, sample" in message

    @pytest.mark.parametrize("rows", ["len", "len-1"])
    def test_t_minus_1_rows_or_t(self, rng, tmp_path, rows):
        routes = random_routes(rng, 12, 2, 8, 2)
        options = Options(experts=8, rows=rows)
        check_samples("arrays", npz(tmp_path / "w.npz", a=routes), options, [(12 if rows == "len" else 13, routes)])

    def test_vllm_prompt_and_completion_parts_are_one_sample(self, rng, tmp_path):
        routes = random_routes(rng, 12, 2, 8, 2, np.uint8)
        path = npz(
            tmp_path / "v.npz",
            prompt_routed_experts=routes[:5],
            routed_experts=routes[5:],
            prompt_token_ids=np.arange(5),
            token_ids=np.arange(8),
        )
        check_samples("vllm", path, E8, [(13, routes)])

    def test_vllm_rows_must_fit_the_tokens(self, rng, tmp_path):
        path = npz(tmp_path / "v.npz", routed_experts=random_routes(rng, 12, 2, 8, 2), num_tokens=np.int64(20))
        assert "found 12 rows, wanted 19 for 20 tokens" in refusal("vllm", path, E8)

    def test_a_sample_that_lost_its_routes_is_kept_without_them(self, rng, tmp_path):
        routes = random_routes(rng, 12, 2, 8, 2)
        path = write_lines(
            tmp_path / "s.jsonl",
            {"meta_info": {"prompt_tokens": 4, "completion_tokens": 9, "routed_experts": b64(routes)}},
            {"meta_info": {"prompt_tokens": 4, "completion_tokens": 3, "routed_experts": None}},
        )
        result = check_samples("sglang", path, Options(experts=8, top_k=2), [(13, routes), (7, None)])
        assert result.report.without_routes == 1

    def test_no_routes_in_any_sample_is_refused(self, tmp_path):
        path = write_lines(tmp_path / "s.jsonl", {"meta_info": {"prompt_tokens": 4, "completion_tokens": 3}})
        assert "no routes in any of 1 samples" in refusal("sglang", path, E8)

    def test_refuse_names_the_sample_but_forgives_the_last_token(self, rng, tmp_path):
        strict = Options(experts=8, missing="refuse")
        routes = random_routes(rng, 12, 2, 8, 2)
        check_samples("arrays", npz(tmp_path / "a.npz", a=routes), strict, [(13, routes)])
        batch, attention, real = left_padded(rng, [5, 7], 9)
        good = npz(tmp_path / "b.npz", routed_experts=batch, attention_mask=attention)
        check_samples("verl", good, strict, [(5, real[0]), (7, real[1])])
        routes[4] = 0
        assert "c.npz: sample 0" in refusal("arrays", npz(tmp_path / "c.npz", a=routes), strict)

    def test_spread_gives_missing_rows_the_load_of_the_others(self, rng, tmp_path):
        routes = random_routes(rng, 40, 2, 8, 2)
        routes[10:20] = 0
        path = npz(tmp_path / "w.npz", a=routes)
        counts, recorded, lengths = figures(convert("arrays", [path], Options(experts=8, missing="spread")).window)
        assert lengths.tolist() == [41] and recorded.tolist() == [[41, 41]]
        assert (counts.sum(axis=2) == 82).all()
        known = counts_of(routes, experts=8)
        assert np.abs(counts[0] - known * 41 / 30).max() <= 1


class TestLayers:
    def test_leading_dense_layers_are_found_by_their_zeros(self, rng, tmp_path):
        routes = random_routes(rng, 12, 4, 8, 2)
        routes[:, :2] = 0
        result = check_samples("arrays", npz(tmp_path / "w.npz", a=routes), E8, [(13, routes[:, 2:])])
        assert result.report.dense_layers == 2

    @pytest.mark.parametrize("every", [True, False])
    def test_named_moe_layers_fit_files_with_and_without_the_dense_ones(self, rng, tmp_path, every):
        routes = random_routes(rng, 12, 4, 8, 2)
        routes[:, 1] = 0
        options = Options(experts=8, layers=(0, 2, 3), num_layers=4)
        moe = routes[:, [0, 2, 3]]
        check_samples("arrays", npz(tmp_path / "w.npz", a=routes if every else moe), options, [(13, moe)])

    def test_a_hole_between_recorded_layers_is_a_failed_capture(self, rng, tmp_path):
        routes = random_routes(rng, 12, 4, 8, 2)
        routes[:, 2] = 0
        assert "no recorded route at layers 2" in refusal("arrays", npz(tmp_path / "w.npz", a=routes), E8)

    def test_a_named_moe_layer_of_zeros_was_not_captured(self, rng, tmp_path):
        routes = random_routes(rng, 12, 4, 8, 2)
        routes[:, 0] = 0
        message = refusal("arrays", npz(tmp_path / "w.npz", a=routes), Options(experts=8, layers=(0, 1, 2, 3)))
        assert "MoE layers 0" in message and "not captured" in message

    def test_a_layer_that_one_sample_lacks_is_recorded_0_for_it(self, rng, tmp_path):
        one, two = random_routes(rng, 12, 2, 8, 2), random_routes(rng, 9, 2, 8, 2)
        two[:, 1] = 0
        result = convert("arrays", [npz(tmp_path / "w.npz", a=one, b=two)], E8)
        assert figures(result.window)[1].tolist() == [[12, 12], [9, 0]]

    def test_layer_counts_that_differ_between_samples_are_refused(self, rng, tmp_path):
        path = npz(tmp_path / "w.npz", a=random_routes(rng, 5, 3, 8, 2), b=random_routes(rng, 5, 2, 8, 2))
        message = refusal("arrays", path, E8)
        assert "sample 1, b: found 2 layers, wanted 3, as in" in message

    def test_top_k_that_differs_between_samples_is_refused(self, rng, tmp_path):
        path = npz(tmp_path / "w.npz", a=random_routes(rng, 5, 3, 8, 2), b=random_routes(rng, 5, 3, 8, 3))
        assert "sample 1, b: found 3 experts per token, wanted 2" in refusal("arrays", path, E8)

    def test_a_layer_axis_that_fits_neither_form_is_refused(self, rng, tmp_path):
        path = npz(tmp_path / "w.npz", a=random_routes(rng, 5, 3, 8, 2))
        assert "found 3 layers, wanted 2 MoE layers or 4" in refusal(
            "arrays", path, Options(experts=8, layers=(1, 2), num_layers=4)
        )

    def test_one_expert_per_token_may_be_expert_0(self, rng, tmp_path):
        routes = rng.integers(0, 4, (30, 3, 1))
        routes[:, 0] = 0
        result = convert("arrays", [npz(tmp_path / "w.npz", a=routes)], Options(experts=4))
        counts, recorded, _ = figures(result.window)
        assert result.report.dense_layers == 1 and recorded.tolist() == [[30, 30]]
        assert np.array_equal(counts[0], [np.bincount(routes[:, l, 0], minlength=4) for l in (1, 2)])


class TestTypesAndOrders:
    @pytest.mark.parametrize(
        "dtype", ["u1", "i1", "<u2", "<i2", "<i4", "<i8", ">u2", ">i2", ">i4", ">i8", "<u4", ">u8"]
    )
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("form", ["npy", "npz", "packed"])
    def test_every_integer_type_byte_order_and_array_order_counts_the_same(self, rng, tmp_path, dtype, order, form):
        routes = random_routes(rng, 12, 3, 8, 2)
        stored = np.array(routes, dtype=dtype, order=order)
        path = tmp_path / ("a.npy" if form == "npy" else "a.npz")
        {"npy": np.save, "npz": np.savez, "packed": np.savez_compressed}[form](path, stored)
        check_samples("arrays", path, E8, [(13, routes)])

    @pytest.mark.parametrize("form", [np.savez, np.savez_compressed])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_batches_in_either_order_packed_or_not(self, rng, tmp_path, form, order):
        batch, attention, real = left_padded(rng, [5, 7, 3, 2], 9)
        form(
            tmp_path / "b.npz",
            routed_experts=np.asarray(batch, order=order),
            attention_mask=np.asarray(attention, order=order),
        )
        check_samples("verl", tmp_path / "b.npz", E8, [(t, r) for t, r in zip([5, 7, 3, 2], real, strict=True)])

    @pytest.mark.parametrize(("dtype", "experts"), [(np.uint8, 257), (np.int8, 129), (np.int16, 40000)])
    def test_more_experts_than_the_type_holds_are_refused(self, rng, tmp_path, dtype, experts):
        path = npz(tmp_path / "w.npz", a=random_routes(rng, 5, 3, 8, 2, dtype))
        message = refusal("arrays", path, Options(experts=experts))
        assert f"found {np.dtype(dtype)}, wanted a type that holds {experts} experts" in message

    def test_all_256_experts_fit_uint8(self, rng, tmp_path):
        routes = random_routes(rng, 50, 2, 256, 8, np.uint8)
        check_samples("arrays", npz(tmp_path / "w.npz", a=routes), Options(experts=256), [(51, routes)])

    def test_an_id_beyond_the_experts_is_refused_with_its_place(self, rng, tmp_path):
        routes = random_routes(rng, 12, 3, 8, 2)
        routes[4, 1, 0] = 8
        message = refusal("arrays", npz(tmp_path / "w.npz", a=routes), E8)
        assert "w.npz: sample 0, a" in message and "8" in message and "4" in message

    def test_ids_beyond_64_bits_signed_are_refused(self, rng, tmp_path):
        routes = random_routes(rng, 12, 3, 8, 2).astype(np.uint64)
        routes[0, 0, 0] = 2**64 - 1
        assert "found expert" in refusal("arrays", npz(tmp_path / "w.npz", a=routes), E8)

    def test_counts_beyond_16_bits_are_kept(self, tmp_path):
        routes = np.tile(np.array([1, 2], dtype=np.uint8), (70000, 1, 1))
        result = convert("arrays", [npz(tmp_path / "w.npz", a=routes)], E8)
        assert figures(result.window)[0][0, 0].tolist() == [0, 70000, 70000, 0, 0, 0, 0, 0]

    def test_floats_are_refused(self, tmp_path):
        assert "wanted an integer type" in refusal(
            "arrays", npz(tmp_path / "w.npz", a=np.zeros((3, 2, 2), np.float32)), E8
        )


class TestPhysicalIds:
    def test_slots_are_brought_back_to_experts_copies_included(self, rng, tmp_path):
        maps = np.stack([rng.permutation(np.r_[np.arange(8), [0, 3]]) for _ in range(2)])
        slots = random_routes(rng, 60, 2, 10, 2)
        options = Options(experts=8, physical_to_logical=maps)
        result = convert("arrays", [npz(tmp_path / "w.npz", a=slots)], options)
        assert np.array_equal(figures(result.window)[0][0], counts_of(slots, experts=8, physical_to_logical=maps))

    def test_a_map_of_all_layers_serves_a_file_of_moe_layers(self, rng, tmp_path):
        maps = np.stack([rng.permutation(8) for _ in range(3)])
        slots = random_routes(rng, 60, 2, 8, 2)
        options = Options(experts=8, physical_to_logical=maps, layers=(1, 2), num_layers=3)
        result = convert("arrays", [npz(tmp_path / "w.npz", a=slots)], options)
        assert np.array_equal(figures(result.window)[0][0], counts_of(slots, experts=8, physical_to_logical=maps[1:]))

    def test_a_map_of_another_model_is_refused(self, rng, tmp_path):
        path = npz(tmp_path / "w.npz", a=random_routes(rng, 6, 2, 8, 2))
        assert "as in physical_to_logical" in refusal(
            "arrays", path, Options(experts=8, physical_to_logical=np.zeros((5, 8), np.int64))
        )
        assert "found expert 8" in refusal("arrays", path, Options(experts=8, physical_to_logical=np.full((2, 8), 8)))


class TestPadding:
    @pytest.mark.parametrize("pad", [0, 3])
    def test_padding_rows_with_fake_routes_are_not_read(self, rng, tmp_path, pad):
        batch, attention, real = left_padded(rng, [5, 7, 3], 9, pad=pad)
        path = npz(tmp_path / "b.npz", routed_experts=batch, attention_mask=attention)
        check_samples("verl", path, E8, list(zip([5, 7, 3], real, strict=True)))

    def test_with_one_expert_per_token_the_zero_of_the_last_token_is_no_route_to_expert_0(self, rng, tmp_path):
        batch, attention, real = left_padded(rng, [5, 7, 3], 9, top_k=1)
        for i, routes in enumerate(real):
            routes[0, 0] = 0  # a real one
            batch[i, np.flatnonzero(attention[i])[0]] = routes[0]
        path = npz(tmp_path / "b.npz", routed_experts=batch, attention_mask=attention)
        check_samples("verl", path, E8, list(zip([5, 7, 3], real, strict=True)))

    def test_other_tensors_of_a_batch_may_be_of_any_type_and_uids_give_the_groups(self, rng, tmp_path):
        batch, attention, real = left_padded(rng, [5, 7, 3], 9)
        path = npz(
            tmp_path / "b.npz",
            rewards=np.zeros(3),
            routed_experts=batch,
            attention_mask=attention,
            uid=np.array(["x", "y", "x"]),
        )
        result = check_samples("verl", path, E8, list(zip([5, 7, 3], real, strict=True)))
        assert np.asarray(result.window.groups).tolist() == [0, 1, 0]
        path = npz(tmp_path / "c.npz", routed_experts=batch.astype(float), attention_mask=attention)
        assert "c.npz, routed_experts, descr: found '<f8', wanted an integer type" in refusal("verl", path, E8)

    def test_a_mask_with_a_gap_is_refused(self, rng, tmp_path):
        batch, attention, _ = left_padded(rng, [5], 9)
        attention[0, 2] = 0
        assert "without gaps" in refusal(
            "verl", npz(tmp_path / "b.npz", routed_experts=batch, attention_mask=attention), E8
        )

    def test_nemo_rl_batches_are_padded_on_the_right_with_minus_1(self, rng, tmp_path):
        batch = np.zeros((2, 9, 2, 2), dtype=np.int8)  # its pad rows go to experts 0 … k-1 in training
        batch[...] = [0, 1]
        real = [random_routes(rng, t, 2, 8, 2) for t in (5, 7)]
        for i, t in enumerate((5, 7)):
            batch[i, :t], batch[i, t - 1] = real[i], -1
        path = npz(tmp_path / "b.npz", routed_experts=batch, input_lengths=np.array([5, 7]))
        check_samples("nemo-rl", path, E8, [(5, real[0][:4]), (7, real[1][:6])])

    def test_skyrl_tail_of_fake_routes_is_left_out_without_its_mask(self, rng, tmp_path):
        batch = np.zeros((1, 9, 2, 2), dtype=np.uint8)
        batch[...] = [0, 1]
        real = random_routes(rng, 4, 2, 8, 2)
        real[3] = [[5, 6], [0, 1]]
        batch[0, 2:6] = real
        attention = np.array([[0, 0, 1, 1, 1, 1, 1, 1, 1]])
        path = npz(tmp_path / "b.npz", rollout_expert_indices=batch, attention_mask=attention)
        check_samples("skyrl", path, E8, [(7, real)])

    def test_skyrl_response_aligned_rows_belong_to_the_response(self, rng, tmp_path):
        batch = np.zeros((1, 5, 2, 2), dtype=np.uint8)
        batch[...] = [0, 1]
        real = random_routes(rng, 3, 2, 8, 2)
        real[-1, 0] = [7, 6]
        batch[0, 1:4] = real
        path = npz(
            tmp_path / "b.npz",
            rollout_expert_indices=batch,
            attention_mask=np.array([[0, 1, 1, 1, 1, 1, 1, 1]]),
            response_mask=np.array([[0, 1, 1, 1, 1]]),
        )
        check_samples("skyrl", path, Options(experts=8, align="response"), [(7, real)])

    def test_skyrl_response_aligned_lines(self, rng, tmp_path):
        real = random_routes(rng, 3, 2, 8, 2, np.uint8)
        packed = {"data": b64(real), "shape": list(real.shape), "dtype": "uint8"}
        line = {"prompt_token_ids": [1, 2, 3], "choices": [{"token_ids": [4, 5, 6, 7], "routed_experts": packed}]}
        check_samples(
            "skyrl", write_lines(tmp_path / "s.jsonl", line), Options(experts=8, align="response"), [(7, real)]
        )


class TestSegments:
    def whole_and_parts(self, rng):
        """Routes of 20 tokens, generated in three requests that end after 8, 14 and 20 tokens."""
        return random_routes(rng, 19, 2, 8, 2)

    def segment(self, routes, start, tokens, dtype=np.int32):
        meta = {
            "prompt_tokens": 5,
            "completion_tokens": tokens - 5,
            "routed_experts": b64(routes[start : tokens - 1].astype(dtype)),
        }
        if start:
            meta["routed_experts_start_len"] = start
        return {"rollout": "a", "meta_info": meta}

    def test_a_prefix_that_two_segments_repeat_is_counted_once(self, rng, tmp_path):
        routes = self.whole_and_parts(rng)
        path = write_lines(tmp_path / "s.jsonl", *(self.segment(routes, 0, t) for t in (8, 14, 20)))
        check_samples("sglang", path, Options(experts=8, top_k=2, join="rollout"), [(20, routes)])

    def test_segments_that_start_later_are_joined_where_they_meet(self, rng, tmp_path):
        routes = self.whole_and_parts(rng)
        path = write_lines(
            tmp_path / "s.jsonl", self.segment(routes, 0, 8), self.segment(routes, 7, 14), self.segment(routes, 10, 20)
        )
        check_samples("sglang", path, Options(experts=8, top_k=2, join="rollout"), [(20, routes)])

    def test_rows_that_lack_between_segments_are_refused(self, rng, tmp_path):
        routes = self.whole_and_parts(rng)
        path = write_lines(tmp_path / "s.jsonl", self.segment(routes, 0, 8), self.segment(routes, 9, 14))
        assert "found rows from token 9 on, wanted at most 7" in refusal(
            "sglang", path, Options(experts=8, top_k=2, join="rollout")
        )

    def test_a_sample_that_starts_late_and_stands_alone_lacks_its_first_rows(self, rng, tmp_path):
        routes = self.whole_and_parts(rng)
        path = write_lines(tmp_path / "s.jsonl", self.segment(routes, 10, 20))
        check_samples("sglang", path, Options(experts=8, top_k=2), [(20, routes[10:])])

    def test_segments_must_stand_together(self, rng, tmp_path):
        routes = self.whole_and_parts(rng)
        other = {**self.segment(routes, 0, 8), "rollout": "b"}
        path = write_lines(tmp_path / "s.jsonl", self.segment(routes, 0, 8), other, self.segment(routes, 0, 14))
        assert "found 'a' again" in refusal("sglang", path, Options(experts=8, top_k=2, join="rollout"))

    def test_nemo_gym_turns_repeat_everything_before_them(self, rng, tmp_path):
        routes = random_routes(rng, 20, 2, 8, 2, np.int16)

        def turn(prompt, generated):
            rows = routes[: prompt + generated].copy()
            rows[-1] = -1
            text = f"nrlre1:int16:{len(rows)}x2x2:{b64(rows)}"
            return {"prompt_token_ids": [0] * prompt, "generation_token_ids": [0] * generated, "routed_experts": text}

        line = {"response": {"output": [turn(4, 3), {"type": "function_call_output"}, turn(9, 4), turn(15, 5)]}}
        check_samples("nemo-rl", write_lines(tmp_path / "n.jsonl", line), E8, [(20, routes[:19])])

    def test_areal_concatenates_segments_that_repeat_the_prefix(self, rng, tmp_path):
        routes = self.whole_and_parts(rng)
        rows = np.concatenate([routes[:7], routes[:13], routes]).reshape(-1, 4)
        path = npz(tmp_path / "a.npz", routed_experts=rows, input_tokens=np.arange(5), output_tokens=np.arange(15))
        check_samples("areal", path, Options(experts=8, top_k=2), [(20, routes)])


class TestWire:
    def test_a_wrong_byte_count_is_refused_with_both_numbers(self, rng, tmp_path):
        routes = random_routes(rng, 12, 2, 8, 2)
        line = {"meta_info": {"prompt_tokens": 4, "completion_tokens": 10, "routed_experts": b64(routes)}}
        message = refusal("sglang", write_lines(tmp_path / "s.jsonl", line), Options(experts=8, top_k=2, num_layers=2))
        assert "found 192 bytes, 48 ids of int32, wanted 52 = 13 rows x 2 layers x top_k 2" in message

    def test_the_wrong_type_shows_in_the_byte_count(self, rng, tmp_path):
        routes = random_routes(rng, 12, 2, 8, 2, np.uint8)  # a server that sends uint8 and does not say so
        line = {"meta_info": {"prompt_tokens": 4, "completion_tokens": 9, "routed_experts": b64(routes)}}
        assert "found 48 bytes" in refusal(
            "sglang", write_lines(tmp_path / "s.jsonl", line), Options(experts=8, top_k=2, num_layers=2)
        )

    def test_open_ai_choices_share_one_usage(self, rng, tmp_path):
        one, two = random_routes(rng, 12, 2, 8, 2), random_routes(rng, 8, 2, 8, 2)
        line = {
            "usage": {"prompt_tokens": 4, "completion_tokens": 14},
            "choices": [{"sglext": {"routed_experts": b64(one)}}, {"sglext": {"routed_experts": b64(two)}}],
        }
        path = write_lines(tmp_path / "s.jsonl", line)
        check_samples("sglang", path, Options(experts=8, top_k=2, num_layers=2), [(13, one), (9, two)])
        assert "num_layers and top_k" in refusal("sglang", path, Options(experts=8, top_k=2))

    def test_legacy_nested_lists_of_nemo_rl(self, rng, tmp_path):
        routes = random_routes(rng, 9, 2, 8, 2)
        check_samples(
            "nemo-rl", write_lines(tmp_path / "n.jsonl", {"routed_experts": routes.tolist()}), E8, [(9, routes)]
        )

    def test_a_sample_above_the_limit_is_refused(self, rng, tmp_path):
        routes = random_routes(rng, 300, 2, 8, 2)
        path = write_lines(tmp_path / "n.jsonl", {"routed_experts": f"nrlre1:int32:300x2x2:{b64(routes)}"})
        assert "wanted one JSON object per line" in refusal(
            "nemo-rl", path, Options(experts=8, limits=Limits(sample=1000))
        )


def test_megatron_rows_of_minus_1_are_left_out_and_other_stages_refused(tmp_path):
    record = {
        "step": 0,
        "stage": "pre_dispatch",
        "block": "decoder",
        "layer": 4,
        "rank": 0,
        "num_tokens": 3,
        "topk": 2,
        "top_indices": [[1, 2], [-1, -1], [2, 3]],
    }
    result = convert("megatron-trace", [write_lines(tmp_path / "t.jsonl", record)], E8)
    assert figures(result.window)[0].tolist() == [[[0, 1, 2, 1, 0, 0, 0, 0]]]
    late = {**record, "stage": "post_dispatch"}
    assert "may be physical" in refusal("megatron-trace", write_lines(tmp_path / "u.jsonl", late), E8)
    for wrong in (
        [[1, 2], [2, 3]],
        [[1, 2], [1], [2, 3]],
        [[1, 2], [2, 8], [2, 3]],
        [[1.0, 2], [1, 2], [1, 3]],
        [[-1, 2]] * 3,
        "x",
    ):
        assert "top_indices" in refusal(
            "megatron-trace", write_lines(tmp_path / "v.jsonl", {**record, "top_indices": wrong}), E8
        )


def test_lengths_offsets_labels_and_safetensors_of_plain_arrays(rng, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    real = [random_routes(rng, t, 2, 8, 2, np.uint8) for t in (5, 3)]
    batch = np.zeros((2, 6, 2, 2), dtype=np.uint8)
    batch[0, :5], batch[1, :3] = real
    padded = {
        "routed_experts": batch,
        "lengths": np.array([5, 3]),
        "groups": np.array([9, 9]),
        "sample_ids": np.array([70, 71]),
    }
    packed = {"routed_experts": np.concatenate(real), "offsets": np.array([0, 5, 8])}
    safetensors.save_file(padded, tmp_path / "p.safetensors")
    safetensors.save_file(packed, tmp_path / "q.safetensors")
    result = check_samples("arrays", tmp_path / "p.safetensors", E8, [(5, real[0]), (3, real[1])])
    assert np.asarray(result.window.ids).tolist() == [70, 71] and np.asarray(result.window.groups).tolist() == [0, 0]
    check_samples("arrays", tmp_path / "q.safetensors", E8, [(5, real[0]), (3, real[1])])
    check_samples(
        "arrays", [tmp_path / "p.safetensors", tmp_path / "q.safetensors"], E8, [(5, real[0]), (3, real[1])] * 2
    )
