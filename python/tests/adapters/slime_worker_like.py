# SPDX-License-Identifier: Apache-2.0
"""What slime's training actors are made of, in slime's shapes: names of parameters, kept copies, lists of weight sync.

Written for these tests, for machines without a checkout. What counts is what goes in and comes out; the same tests run
on slime's own code when ROUTEPACK_SLIME_CHECKOUT names it.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist


def common() -> Any:
    """…update_weight.common: parameters by names that count experts over all ranks."""
    module = types.ModuleType("common")

    def _named_params_and_buffers_global(args: Any, model: Any) -> Iterator[tuple[str, Any]]:
        from megatron.core import parallel_state

        first = parallel_state.get_expert_model_parallel_rank() * args.num_experts
        first //= parallel_state.get_expert_model_parallel_world_size()
        for chunk in model:
            for name, parameter in chunk.named_parameters():
                name = name if name.startswith("module.module.") else f"module.{name}"
                found = re.fullmatch(r"(.+\.experts\..+\.weight)(\d+)", name)
                yield (name if found is None else f"{found[1]}{int(found[2]) + first}"), parameter

    def named_params_and_buffers(args: Any, model: Any) -> Iterator[tuple[str, Any]]:
        return module._named_params_and_buffers_global(args, model)  # type: ignore[no-any-return]

    module._named_params_and_buffers_global = _named_params_and_buffers_global  # type: ignore[attr-defined]
    module.named_params_and_buffers = named_params_and_buffers  # type: ignore[attr-defined]
    return module


class _TensorBackuperNormal:
    def __init__(self, source_getter: Callable[[], Any]) -> None:
        self._source_getter = source_getter
        self._backups: dict[str, dict[str, torch.Tensor]] = {}

    def get(self, tag: str) -> dict[str, torch.Tensor]:
        return self._backups[tag]

    def backup(self, tag: str) -> None:
        kept = self._backups.setdefault(tag, {})
        for name, tensor in self._source_getter():
            kept.setdefault(name, torch.empty_like(tensor)).copy_(tensor.detach())

    def copy(self, *, src_tag: str, dst_tag: str) -> None:
        for name in self._backups[dst_tag]:
            self._backups[dst_tag][name].copy_(self._backups[src_tag][name])

    def restore(self, tag: str) -> None:
        with torch.no_grad():
            for name, tensor in self._source_getter():
                tensor.copy_(self._backups[tag][name])


def backuper() -> Any:
    """slime.utils.tensor_backper"""
    holder = type("_TensorBackuperNormal", (_TensorBackuperNormal,), dict(vars(_TensorBackuperNormal)))
    return types.SimpleNamespace(_TensorBackuperNormal=holder)


def _get_megatron_local_param_info_buckets(args: Any, model: Any) -> list[list[Any]]:
    """Who has what, the same on all ranks."""
    mine = {name: dist.get_rank() for name, _ in args.names(args, model)}
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, mine)
    holders: dict[str, int] = {}
    for some in said:
        for name, rank in some.items():
            holders[name] = min(rank, holders.get(name, rank))
    infos = [types.SimpleNamespace(name=name, src_rank=rank) for name, rank in sorted(holders.items())]
    return [infos[:3], infos[3:]]


class HfWeightIterator:
    def __init__(self, args: Any, model: Any) -> None:
        self.args, self.model = args, model
        self.megatron_local_param_info_buckets = _get_megatron_local_param_info_buckets(args, model)

    def get_hf_weight_chunks(self, weights: Any, param_info_buckets: Any) -> Iterator[list[tuple[str, torch.Tensor]]]:
        for bucket in param_info_buckets:
            chunk = []
            for info in bucket:
                box = [weights[info.name].clone() if info.src_rank == dist.get_rank() else None]
                dist.broadcast_object_list(box, src=info.src_rank)
                chunk.append((info.name, box[0]))
            yield chunk


def tensor() -> Any:
    """…update_weight.update_weight_from_tensor"""
    module = types.ModuleType("update_weight_from_tensor")

    def configure_expert_routing(*, args: Any, full_param_info_buckets: Any) -> tuple[Any, list[Any]]:
        return None, []

    class UpdateWeightFromTensor:
        def __init__(self, args: Any, model: Any, weights_getter: Any, **_: Any) -> None:
            self.weights_getter = weights_getter
            self._hf_weight_iterator = HfWeightIterator(args, model)
            self._full_param_info_buckets = tuple(self._hf_weight_iterator.megatron_local_param_info_buckets)
            self._non_expert_param_info_buckets: Any = None
            self._expert_transfer_plan: list[Any] = []

        def update_weights(self) -> None:
            chunks = self._hf_weight_iterator.get_hf_weight_chunks(
                self.weights_getter(), param_info_buckets=self._full_param_info_buckets
            )
            for named in chunks:
                self._send_hf_params(named)

        def _send_hf_params(self, named: Any) -> tuple[list[Any], None]:
            return [], None

    module.configure_expert_routing = configure_expert_routing  # type: ignore[attr-defined]
    module.UpdateWeightFromTensor = UpdateWeightFromTensor  # type: ignore[attr-defined]
    return module
