# SPDX-License-Identifier: Apache-2.0
"""slime batches, and managers to cut them: on recorded shapes, and of a checkout."""

from __future__ import annotations

import argparse
import types
from typing import Any

import pytest
import torch

from . import checkouts, slime_like
from .batches import Batch

PARALLEL = {"dp_size": 4, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}


def arguments(batch: Batch, **more: Any) -> argparse.Namespace:
    """slime's arguments as far as they matter here, under slime's names."""
    values: dict[str, Any] = {
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 128,
        "global_batch_size": batch.samples // 2,
        "micro_batch_size": 1,
        "balance_data": False,
        "balance_by_flops": False,
        "num_experts": batch.experts,
        "num_layers": batch.layers,
        "moe_router_topk": batch.top_k,
        "moe_layer_freq": [0] + [1] * (batch.layers - 1),
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "allgather_cp": False,
        "rollout_data_transport": "object-store",
    }
    return argparse.Namespace(**{**values, **more})


def data_of(batch: Batch) -> dict[str, Any]:
    """What `_convert_samples_to_train_data` makes of a batch."""
    masks = batch.loss_masks()
    return {
        "tokens": batch.tokens(),
        "response_lengths": batch.response_lengths(),
        "rewards": batch.rewards(),
        "loss_masks": masks,
        "sample_indices": list(range(batch.samples)),
        "rollout_ids": list(range(batch.samples)),
        "rollout_mask_sums": [sum(mask) for mask in masks],
        "rollout_routed_experts": [torch.from_numpy(ids) for ids in batch.routes()],
    }


def like() -> types.SimpleNamespace:
    """A module of recorded shapes, fresh for every test."""
    manager = type("RolloutManager", (slime_like.RolloutManager,), dict(vars(slime_like.RolloutManager)))
    return types.SimpleNamespace(RolloutManager=manager, build_dp_schedule=slime_like.build_dp_schedule)


def checkout(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """slime's own schedule builder, in a manager that calls it as slime's does."""
    build = checkouts.slime_schedule().build_dp_schedule
    monkeypatch.setattr(slime_like, "build_dp_schedule", build)
    made = like()
    made.build_dp_schedule = build
    return made


def schedule_of(parts: list[dict[str, Any]]) -> tuple[Any, Any, Any, Any]:
    """The four lists, from what the ranks got."""
    return (
        [part["partition"] for part in parts],
        [part["micro_batch_indices"] for part in parts],
        parts[0]["num_microbatches"],
        parts[0]["global_batch_sizes"],
    )
