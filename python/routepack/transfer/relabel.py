# SPDX-License-Identifier: Apache-2.0
"""Distributed checkpoints in the order of experts, whatever slots hold them.

A sharded state dict of Megatron-Core names an expert by its global slot: `ep_rank * n + i`, as an offset on an axis of
its own or, with `singleton_local_shards`, in the key. Here that number becomes the expert's, so that the model's part
of a checkpoint, and optimizer state that follows its names, is the same under every placement.
Source: megatron/core/transformer/moe/experts.py, transformer/mlp.py, extensions/transformer_engine.py.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from routepack._errors import InvalidInput

METHOD = "sharded_state_dict"
OWNER = "_routepack_relabels"
#: In keys of optimizer state that Megatron keeps in the order of its flat buffers, and so of slots.
IN_SLOT_ORDER = "optimizer.distributed.dp_group_idx_"


def relabelled(sharded: dict[str, Any], prefix: str, axis: int, table: Sequence[int]) -> dict[str, Any]:
    """What an experts module says of its parameters, with experts for slots. Objects are changed in place.

    :param prefix: of the module's names
    :param axis: of the experts, in tensors that have one
    :param table: [E], the expert in each slot
    :raises InvalidInput: for what does not say its slot as Megatron does
    """
    key = re.compile(rf"(?<={re.escape(prefix)}experts\.)(\d+)(?=\.)")
    return {name: _relabel(name, entry, key, axis, table) for name, entry in sharded.items()}


def _relabel(name: str, entry: Any, key: re.Pattern[str], axis: int, table: Sequence[int]) -> Any:
    said = key.search(entry.key)
    if said is not None:  # a key of its own for each expert; a factory hands it on
        entry.key = f"{entry.key[: said.start()]}{_expert(name, int(said[1]), table)}{entry.key[said.end() :]}"
        return entry
    if hasattr(entry, "build_fn"):
        return dataclasses.replace(entry, build_fn=_relabelling(entry.build_fn, name, key, axis, table))
    shape, offset = tuple(entry.global_shape), tuple(entry.global_offset)
    if len(shape) <= axis or shape[axis] != len(table):
        raise InvalidInput(f"{name}: found a tensor of global shape {list(shape)}, wanted {len(table)} on axis {axis}")
    entry.global_offset = (*offset[:axis], _expert(name, int(offset[axis]), table), *offset[axis + 1 :])
    return entry


def _relabelling(build: Any, name: str, key: re.Pattern[str], axis: int, table: Sequence[int]) -> Any:
    """A factory builds its tensors when it is asked to: of weights, and of what the optimizer has of them."""

    @functools.wraps(build)
    def build_fn(*args: Any, **kwargs: Any) -> Any:
        built = build(*args, **kwargs)
        if isinstance(built, dict):
            return {part: _relabel(name, entry, key, axis, table) for part, entry in built.items()}
        return [_relabel(name, entry, key, axis, table) for entry in built]

    return build_fn


def _expert(name: str, slot: int, table: Sequence[int]) -> int:
    if not 0 <= slot < len(table):
        raise InvalidInput(f"{name}: found slot {slot}, wanted 0 to {len(table) - 1}")
    return int(table[slot])


def install(module: Any, table: Callable[[], Sequence[int]]) -> Callable[[], None]:
    """Makes the `sharded_state_dict` of one experts module name experts. @returns what takes it out again

    :param module: TEGroupedMLP or SequentialMLP
    :param table: says the expert in each slot, [E], when it is asked
    :raises InvalidInput: for a module without that method
    """
    original = getattr(module, METHOD, None)
    if not callable(original):
        raise InvalidInput(f"{type(module).__name__}: found no method {METHOD}, wanted one to name experts in")

    @functools.wraps(original)
    def sharded_state_dict(prefix: str = "", sharded_offsets: Any = (), metadata: Any = None, **more: Any) -> Any:
        made = original(prefix, sharded_offsets, metadata, **more)
        return relabelled(made, prefix, len(sharded_offsets), table())

    setattr(module, METHOD, sharded_state_dict)

    def remove() -> None:
        if module.__dict__.get(METHOD) is sharded_state_dict:
            delattr(module, METHOD)

    return remove


def in_slot_order(state: Any) -> bool:
    """Whether a sharded state dict has optimizer state in the order of buffers: `dp_reshardable`, `dp_zero`."""
    if isinstance(state, dict):
        return any(in_slot_order(value) for value in state.values())
    if isinstance(state, (list, tuple)):
        return any(in_slot_order(value) for value in state)
    return IN_SLOT_ORDER in str(getattr(state, "key", ""))


__all__ = ["IN_SLOT_ORDER", "in_slot_order", "install", "relabelled"]
