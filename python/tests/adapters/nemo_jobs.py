# SPDX-License-Identifier: Apache-2.0
"""NeMo RL batches and policies: on recorded shapes, and of a checkout."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from . import checkouts, nemo_like
from .batches import Batch


def config(batch: Batch, **more: Any) -> dict[str, Any]:
    """NeMo RL's policy configuration as far as it matters here."""
    return {
        "model_name": "nowhere/to-be-found",
        "train_global_batch_size": batch.samples // 2,
        "train_micro_batch_size": 1,
        "make_sequence_length_divisible_by": 4,
        "sequence_packing": {"enabled": True, "train_mb_tokens": 128, "logprob_mb_tokens": 128},
        "dynamic_batching": {"enabled": False},
        "router_replay": {"enabled": True},
        "megatron_cfg": {
            "enabled": True,
            "expert_model_parallel_size": 2,
            "expert_tensor_parallel_size": 1,
            "tensor_model_parallel_size": 1,
            "context_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
            "moe_router_load_balancing_type": "none",
        },
        "dtensor_cfg": {"enabled": False},
        **more,
    }


def columns(batch: Batch) -> dict[str, Any]:
    """A batch padded on the right; the last token and the padding have no route."""
    lengths, width = batch.lengths(), max(batch.lengths())
    ids = torch.zeros(batch.samples, width, dtype=torch.int64)
    mask = torch.zeros(batch.samples, width)
    routes = torch.full((batch.samples, width, batch.layers, batch.top_k), -1, dtype=torch.int8)
    for i, (tokens, some, recorded) in enumerate(zip(batch.tokens(), batch.loss_masks(), batch.routes(), strict=True)):
        ids[i, : lengths[i]] = torch.tensor(tokens)
        mask[i, lengths[i] - len(some) : lengths[i]] = torch.tensor(some, dtype=torch.float32)
        routes[i, : lengths[i] - 1] = torch.from_numpy(recorded).to(torch.int8)
    return {
        "input_ids": ids,
        "input_lengths": torch.tensor(lengths),
        "token_mask": mask,
        "sample_mask": torch.ones(batch.samples),
        "advantages": torch.tensor(batch.rewards(), dtype=torch.float32)[:, None].expand(-1, width).contiguous(),
        "idx": list(range(batch.samples)),
        "routed_experts": routes,
    }


def like() -> types.SimpleNamespace:
    """Classes of recorded shapes, fresh for every test."""
    batch = type("BatchedDataDict", (nemo_like.BatchedDataDict,), dict(vars(nemo_like.BatchedDataDict)))
    policy = type("Policy", (nemo_like.Policy,), dict(vars(nemo_like.Policy)))
    return types.SimpleNamespace(BatchedDataDict=batch, SlicedDataDict=nemo_like.SlicedDataDict, Policy=policy)


def checkout() -> types.SimpleNamespace:
    """NeMo RL's own batch, and a policy that cuts it as NeMo RL's does."""
    own = checkouts.nemo_data()
    policy = type("Policy", (nemo_like.Policy,), dict(vars(nemo_like.Policy)))
    return types.SimpleNamespace(BatchedDataDict=own.BatchedDataDict, SlicedDataDict=own.SlicedDataDict, Policy=policy)


def own_policy(cfg: dict[str, Any], ranks: int) -> types.SimpleNamespace:
    """NeMo RL's own policy, without its workers: what cuts batches needs none."""
    module = checkouts.nemo_policy()
    data = checkouts.nemo_data()

    def make(_: Any, __: Any) -> Any:
        policy = object.__new__(module.Policy)
        policy.cfg = cfg
        policy.sharding_annotations = types.SimpleNamespace(get_axis_size=lambda axis: ranks)
        policy.use_dynamic_batches, policy.use_sequence_packing = False, True
        policy.sequence_packing_args = {
            "algorithm": "modified_first_fit_decreasing",
            "input_key": "input_ids",
            "input_lengths_key": "input_lengths",
            "sequence_length_pad_multiple": cfg["make_sequence_length_divisible_by"],
        }
        return policy

    return types.SimpleNamespace(
        BatchedDataDict=data.BatchedDataDict, SlicedDataDict=data.SlicedDataDict, Policy=module.Policy, make=make
    )


def source_of(name: str, cfg: dict[str, Any], ranks: int, request: pytest.FixtureRequest) -> types.SimpleNamespace:
    """By the name of a test's parameter."""
    if name == "recorded shapes":
        made = like()
    elif name == "checkout's batch":
        made = checkout()
    else:
        return own_policy(cfg, ranks)
    made.make = made.Policy
    return made
