# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a test with Megatron-Core's MoE layer do."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from routepack.transfer import PhysicalDispatch

from .logical import Mismatch
from .megatron_on_cpu import patch_for_cpu

HIDDEN, WIDTH, EXPERTS, TOP_K, TOKENS = 16, 24, 8, 2, 12


def make_layer() -> Any:
    """A mixture-of-experts layer of two slots per rank, with weights that all ranks draw alike."""
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        ffn_hidden_size=WIDTH,
        moe_ffn_hidden_size=WIDTH,
        num_moe_experts=EXPERTS,
        moe_router_topk=TOP_K,
        moe_token_dispatcher_type="allgather",
        moe_enable_routing_replay=True,
        moe_router_load_balancing_type="none",
        expert_model_parallel_size=dist.get_world_size(),
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
    )
    spec = get_moe_module_spec(use_te=False, num_experts=EXPERTS, moe_grouped_gemm=False)
    return MoELayer(config, spec.submodules, layer_number=1)


def layer_under_placements(rank: int, placements: list[list[int]], update: bool) -> None:
    """Outputs, gradients of experts and of the router under every placement are those of the identity, and routes that
    were recorded in logical order are replayed."""
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    patch_for_cpu()
    parallel_state.initialize_model_parallel(expert_model_parallel_size=dist.get_world_size())
    layer = make_layer()
    chance = torch.Generator().manual_seed(1)
    shapes = {name: parameter.shape for name, parameter in layer.experts.local_experts[0].named_parameters()}
    weights = [
        {name: torch.randn(shape, generator=chance) * 0.3 for name, shape in shapes.items()}
        for _ in range(EXPERTS)
    ]
    layer.router.weight.data.copy_(torch.randn(layer.router.weight.shape, generator=chance))
    inputs = torch.randn(TOKENS, 1, HIDDEN, generator=torch.Generator().manual_seed(10 + rank))
    weighting = torch.randn(TOKENS, 1, HIDDEN, generator=torch.Generator().manual_seed(20 + rank))

    RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
    identity = list(range(EXPERTS))
    wanted = _run(layer, identity, weights, inputs, weighting)
    recorded = RouterReplay.get_recorded_data()[0].clone()
    if len(torch.unique(recorded)) < 3:
        raise Mismatch("routes of too few experts to tell placements apart")

    physical = PhysicalDispatch(layer.token_dispatcher, EXPERTS, module=layer)
    if "slot_to_logical" in " ".join(layer.state_dict()):
        raise Mismatch("the map is in the state dict")
    for placement in placements:
        if update:
            physical.update(placement)
        RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
        _compare(_run(layer, placement, weights, inputs, weighting), wanted, f"{placement}, routed")
        if not torch.equal(RouterReplay.get_recorded_data()[0], recorded):
            raise Mismatch(f"{placement}: recorded routes are not in logical order")
        # Routes that the router would not choose itself: the same for all placements when they are replayed logically.
        other = torch.stack([(recorded[:, 0] + 1) % EXPERTS, (recorded[:, 0] + 3) % EXPERTS], dim=1)
        results = []
        for slots in (identity, placement):
            physical.update(slots if update else identity)
            RouterReplay.clear_global_indices()
            RouterReplay.set_replay_data([other])
            RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
            results.append(_run(layer, slots, weights, inputs, weighting))
        _compare(results[1], results[0], f"{placement}, replayed")
        if torch.allclose(results[0]["outputs"], wanted["outputs"]):
            raise Mismatch("replayed routes made no difference")
    physical.remove()
    _compare(_run(layer, identity, weights, inputs, weighting, replayed=False), wanted, "after removal")
    parallel_state.destroy_model_parallel()


def _run(
    layer: Any,
    placement: list[int],
    weights: list[dict[str, torch.Tensor]],
    inputs: torch.Tensor,
    weighting: torch.Tensor,
    replayed: bool = True,
) -> dict[str, torch.Tensor]:
    """Forward and backward with the experts that `placement` puts into this rank's slots."""
    from megatron.core.transformer.moe.router_replay import RouterReplay

    if not replayed:
        RouterReplay.clear_global_router_replay_action()
    local = layer.experts.local_experts
    mine = placement[dist.get_rank() * len(local) :][: len(local)]
    for slot, e in enumerate(mine):
        for name, parameter in local[slot].named_parameters():
            parameter.data.copy_(weights[e][name])
    layer.zero_grad(set_to_none=True)
    x = inputs.clone().requires_grad_()
    y, _ = layer(x)
    (y * weighting).sum().backward()
    found = {"outputs": y.detach(), "inputs": x.grad, "router": layer.router.weight.grad}
    for name in weights[0]:
        stacked = torch.zeros(EXPERTS, *weights[0][name].shape)
        for slot, e in enumerate(mine):
            grad = dict(local[slot].named_parameters())[name].grad
            if grad is not None:
                stacked[e] = grad
        dist.all_reduce(stacked)
        found[name] = stacked
    return found


def _compare(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], where: str) -> None:
    for name, value in wanted.items():
        if not torch.allclose(found[name], value, rtol=1e-5, atol=1e-6):
            worst = float((found[name] - value).abs().max())
            raise Mismatch(f"{where}: {name} differ by {worst}")
