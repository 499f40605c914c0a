# SPDX-License-Identifier: Apache-2.0
"""A few of Megatron-Core's layers under its DistributedDataParallel and DistributedOptimizer, on an EP × EDP grid."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from routepack import Placement

HIDDEN, WIDTH, TOP_K, TOKENS = 16, 24, 2, 20


@dataclasses.dataclass(frozen=True)
class Variant:
    """What the adapter meets in the wild, as far as it runs here."""

    layers: int = 2
    experts: int = 8
    ep: int = 2
    exact: bool = False  # fp32 weights, which are their own masters
    distributed: bool = True  # states sharded over EDP; else every lane has all
    bucket_elements: int | None = None  # overlapped reduction of gradients, in buckets
    overlap_gather: bool = False  # weights gathered late, by hooks of the next forward pass
    grouped: bool = False  # experts named and registered as in Transformer Engine's grouped layers

    @property
    def slots(self) -> int:
        return self.experts // self.ep


class GroupedExperts(torch.nn.Module):
    """Stands for TEGroupedMLP, which needs a GPU: its parameters' names, attributes and order, and what it computes."""

    def __init__(self, sequential: Any) -> None:
        super().__init__()
        for name in ("linear_fc1", "linear_fc2"):
            linear = torch.nn.Module()
            for i, expert in enumerate(sequential.local_experts):
                parameter = torch.nn.Parameter(getattr(expert, name).weight.data.clone())
                parameter.allreduce = False
                linear.register_parameter(f"weight{i}", parameter)
            setattr(self, name, linear)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """As `TEGroupedMLP` names its parameters in distributed checkpoints, but for gated halves."""
        from megatron.core import parallel_state
        from megatron.core.dist_checkpointing import ShardedTensor

        ranks, axis = parallel_state.get_expert_model_parallel_world_size(), len(sharded_offsets)
        made: dict[str, Any] = {}
        for name, linear in self.named_children():
            slots = len(list(linear.parameters()))
            for i, parameter in enumerate(linear.parameters()):
                place = parallel_state.get_expert_model_parallel_rank() * slots + i
                made[f"{prefix}{name}.weight{i}"] = ShardedTensor.from_rank_offsets(
                    f"{prefix}experts.{name}.weight", parameter, *sharded_offsets, (axis, place, ranks * slots),
                    prepend_axis_num=axis + 1,
                    replica_id=(0, 0, parallel_state.get_expert_data_parallel_rank()),
                )  # fmt: skip
        return made

    def forward(self, tokens: torch.Tensor, per_expert: torch.Tensor, probs: torch.Tensor) -> Any:
        done = []
        parts = zip(tokens.split(per_expert.tolist()), probs.split(per_expert.tolist()), strict=True)
        for i, (part, weights) in enumerate(parts):
            fc1, fc2 = getattr(self.linear_fc1, f"weight{i}"), getattr(self.linear_fc2, f"weight{i}")
            gate, up = torch.nn.functional.linear(part, fc1).float().chunk(2, dim=-1)
            inner = torch.nn.functional.silu(gate) * up * weights[:, None]
            done.append(torch.nn.functional.linear(inner.to(part.dtype), fc2))
        return torch.cat(done), None


class Layers(torch.nn.Module):
    """Residual MoE layers, named as in Megatron's decoder."""

    def __init__(self, config: Any, layers: int, grouped: bool) -> None:
        super().__init__()
        from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
        from megatron.core.transformer.moe.moe_layer import MoELayer

        spec = get_moe_module_spec(use_te=False, num_experts=config.num_moe_experts, moe_grouped_gemm=False)
        self.config = config
        self.layers = torch.nn.ModuleList(
            MoELayer(config, spec.submodules, layer_number=number + 1) for number in range(layers)
        )

        if grouped:
            for layer in self.layers:
                layer.experts = GroupedExperts(layer.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y, _ = layer(x)
            x = x + y
        return x


def make_config(variant: Variant) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype = torch.float32 if variant.exact else torch.bfloat16
    return TransformerConfig(
        num_layers=variant.layers,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        ffn_hidden_size=WIDTH,
        moe_ffn_hidden_size=WIDTH,
        num_moe_experts=variant.experts,
        moe_router_topk=TOP_K,
        moe_router_dtype="fp32",
        moe_token_dispatcher_type="allgather",
        moe_enable_routing_replay=True,
        moe_router_load_balancing_type="none",
        expert_model_parallel_size=variant.ep,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        params_dtype=dtype,
        bf16=not variant.exact,
    )


class Model:
    """One rank's chunk and optimizer."""

    def __init__(self, variant: Variant, overrides: Any = None, body: Any = Layers, **optimizer: Any) -> None:
        """`body` stands for what the chunk computes, `optimizer` for settings of its own."""
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        self.variant = variant
        config = make_config(variant)
        module = body(config, variant.layers, variant.grouped)
        ddp = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=variant.distributed,
            overlap_grad_reduce=variant.bucket_elements is not None,
            bucket_size=variant.bucket_elements,
            overlap_param_gather=variant.overlap_gather,
        )
        self.chunk = DistributedDataParallel(config, ddp, module)
        settings = OptimizerConfig(
            optimizer="adam",
            **optimizer,
            lr=1e-2,
            min_lr=0.0,
            weight_decay=0.01,
            clip_grad=0.0,  # the norm's sum is over slots in their order: its last bits are not the same
            bf16=not variant.exact,
            params_dtype=config.params_dtype,
            use_distributed_optimizer=variant.distributed,
            overlap_param_gather=variant.overlap_gather,
        )
        self.optimizer = get_megatron_optimizer(settings, [self.chunk], overrides, use_gloo_process_groups=False)

    @property
    def experts(self) -> list[list[dict[str, torch.nn.Parameter]]]:
        """[layer][local slot], parameters by name."""
        layers = self.chunk.module.layers
        if self.variant.grouped:
            names = ("linear_fc1", "linear_fc2")
            return [
                [
                    {f"{name}.weight": getattr(getattr(layer.experts, name), f"weight{i}") for name in names}
                    for i in range(self.variant.slots)
                ]
                for layer in layers
            ]
        return [[dict(e.named_parameters()) for e in layer.experts.local_experts] for layer in layers]

    def load(self, seed: int) -> None:
        """Weights that all ranks draw alike, expert by expert, under the identity."""
        chance = torch.Generator().manual_seed(seed)
        ep_rank = dist.get_rank() % self.variant.ep
        for layer, slots in zip(self.chunk.module.layers, self.experts, strict=True):
            layer.router.weight.data.copy_(torch.randn(layer.router.weight.shape, generator=chance))
            for e in range(self.variant.experts):
                for name, parameter in slots[0].items():
                    drawn = torch.randn(parameter.shape, generator=chance) * 0.3
                    if e // self.variant.slots == ep_rank:
                        slots[e % self.variant.slots][name].data.copy_(drawn)
        self.optimizer.reload_model_params()

    def zero_grad(self) -> None:
        self.chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def step(self, seed: int) -> dict[str, torch.Tensor]:
        """One training step as Megatron's loop does it, but for the clearing of gradients, which moves want first.
        @returns outputs"""
        chance = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
        dtype = torch.float32 if self.variant.exact else torch.bfloat16
        x = torch.randn(TOKENS, 1, HIDDEN, generator=chance).to(dtype)
        weighting = torch.randn(TOKENS, 1, HIDDEN, generator=chance)
        y = self.chunk(x)
        (y.float() * weighting).sum().backward()
        self.chunk.finish_grad_sync()
        success, norm, _ = self.optimizer.step()
        assert success and norm > 0
        return {"outputs": y.detach().clone()}


def gather(model: Model, placement: Placement) -> dict[str, torch.Tensor]:
    """Everything that belongs to experts, [L, E, elements] per tensor, in their own order; found by Megatron's own
    functions alone. Elements that no lane gave are NaN."""
    variant = model.variant
    optimizers = [o for o in model.optimizer.chained_optimizers if hasattr(o, "_get_model_param_range_map")]
    pieces: list[tuple[int, int, str, int, torch.Tensor]] = []
    for layer, slots in enumerate(model.experts):
        for slot, parameters in enumerate(slots):
            global_slot = (dist.get_rank() % variant.ep) * variant.slots + slot
            e = int(placement.physical_to_logical[layer, global_slot])
            for name, parameter in parameters.items():
                pieces.append((layer, e, f"{name}", 0, parameter.data.reshape(-1).clone()))
                for word, begin, part in _states(model, optimizers, parameter):
                    pieces.append((layer, e, f"{name}.{word}", begin, part.detach().reshape(-1).clone()))
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, pieces)
    sizes = {name: parameter.numel() for name, parameter in model.experts[0][0].items()}
    state: dict[str, torch.Tensor] = {}
    for given in everything:
        for layer, e, name, begin, part in given:
            if name.endswith(".step"):
                size = 1
            else:
                size = next(size for known, size in sizes.items() if name.startswith(known))
            if name not in state:
                state[name] = torch.full((variant.layers, variant.experts, size), float("nan"), dtype=part.dtype)
            place = state[name][layer, e, begin : begin + part.numel()]
            if not torch.isnan(place).all() and not torch.equal(place, part):
                raise AssertionError(f"{name}[{layer}, {e}] differs between lanes")
            place.copy_(part)
    return state


def _states(model: Model, optimizers: list[Any], parameter: Any) -> list[tuple[str, int, torch.Tensor]]:
    if not model.variant.distributed:
        main = getattr(parameter, "main_param", parameter)
        holder = next(o for o in model.optimizer.chained_optimizers if any(main is p for p in o.get_parameters()))
        states = {"param": main, **holder.optimizer.state[main]}
        return [(word, 0, part) for word, part in states.items()]
    for optimizer in optimizers:
        if parameter in optimizer.model_param_gbuf_map:
            begin = optimizer._get_model_param_range_map(parameter)["param"].start
            states = optimizer._get_main_param_and_optimizer_states(parameter)
            return [(word, 0 if word == "step" else begin, part) for word, part in states.items()]
    return []
