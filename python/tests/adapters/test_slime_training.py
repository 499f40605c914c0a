# SPDX-License-Identifier: Apache-2.0
"""Losses and gradients of slime's own packing and of the plan are the same up to the order of sums.

Every rank reads its microbatches by slime's index lists, each loss is reduced as slime's loss function does (sums of
rollout means over `rollout_mask_sums` and the step's rollouts, or sums over all trained tokens), and gradients are
added over microbatches and ranks as Megatron does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from routepack.adapters import PlannerProcess, Settings, slime  # noqa: E402

from . import checkouts  # noqa: E402
from .batches import COST, PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .model import Model, agree, gradients, policy_loss  # noqa: E402
from .slime_jobs import PARALLEL, arguments, checkout, data_of, like, schedule_of  # noqa: E402


def reducer_as_recorded(
    total_lengths: Any, response_lengths: Any, masks: Any, denominators: Any, per_token: bool
) -> Callable[[Any], Any]:
    """What slime's `get_sum_of_sample_mean` gives."""

    def reduce(x: Any) -> Any:
        sums = [(some * mask).sum() for some, mask in zip(x.split(response_lengths), masks, strict=True)]
        if per_token:
            return sum(sums)
        return sum(s / torch.clamp_min(total, 1) for s, total in zip(sums, denominators, strict=True))

    return reduce


def train(model: Model, parts: list[dict[str, Any]], per_token: bool, reducer: Any) -> list[tuple[float, Any]]:
    """Loss and gradients of each optimizer step."""
    steps = []
    begin = 0
    for rows, rollouts in zip(parts[0]["num_microbatches"], parts[0]["global_batch_sizes"], strict=True):
        total, trained = 0.0, 0.0
        for part in parts:
            assert part["num_microbatches"] == parts[0]["num_microbatches"]
            for cell in part["micro_batch_indices"][begin : begin + rows]:
                masks = [torch.tensor(part["loss_masks"][i], dtype=torch.float32) for i in cell]
                losses = policy_loss(
                    model,
                    [torch.tensor(part["tokens"][i]) for i in cell],
                    [part["rollout_routed_experts"][i] for i in cell],
                    masks,
                    [part["rewards"][i] for i in cell],
                )
                lengths = [len(part["tokens"][i]) for i in cell]
                totals = torch.tensor([part["rollout_mask_sums"][i] for i in cell], dtype=torch.float32)
                loss = reducer(lengths, [len(mask) for mask in masks], masks, totals, per_token)(torch.cat(losses))
                trained += sum(float(mask.sum().clamp_min(1)) for mask in masks)
                if not per_token:  # times rows and ranks, by which Megatron divides
                    loss = loss * rows / rollouts * len(parts) / rows / len(parts)
                loss.backward()
                total += float(loss.detach())
        grads = gradients(model)
        scale = trained if per_token else 1.0
        steps.append((total / scale, {name: grad / scale for name, grad in grads.items()}))
        begin += rows
    return steps


@pytest.mark.parametrize("source", ["recorded shapes", "checkout"])
@pytest.mark.parametrize("per_token", [False, True], ids=["sequence mean", "token mean"])
@pytest.mark.parametrize("siblings", [1, 2])
def test_a_plan_trains_what_slime_trains(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, source: str, per_token: bool, siblings: int
) -> None:
    module = like() if source == "recorded shapes" else checkout(monkeypatch)
    shared(monkeypatch, planner)
    batch = Batch()
    args = arguments(batch, global_batch_size=batch.samples // siblings // 2)

    def data() -> dict[str, Any]:
        made = data_of(batch)
        made["rollout_ids"] = [i // siblings for i in range(batch.samples)]
        sums = made["rollout_mask_sums"]
        made["rollout_mask_sums"] = [
            sum(sums[i // siblings * siblings : (i // siblings + 1) * siblings]) for i in range(batch.samples)
        ]
        return made

    own = module.RolloutManager(args, PARALLEL)._split_train_data_by_dp(data())
    slime.install(Settings(cost=COST, **PATIENT), module=module)
    planned = module.RolloutManager(args, PARALLEL)._split_train_data_by_dp(data())
    assert schedule_of(own) != schedule_of(planned)
    model = Model(batch)
    reducer = reducer_as_recorded if source == "recorded shapes" else checkouts.slime_reducer()
    for (loss, grads), (other, others) in zip(
        train(model, own, per_token, reducer), train(model, planned, per_token, reducer), strict=True
    ):
        assert loss == pytest.approx(other, rel=1e-5)
        assert agree(grads, others)
    broken = dict(grads, router=grads["router"] * 1.0001)
    assert not agree(grads, broken)  # the comparison can fail
