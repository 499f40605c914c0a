# SPDX-License-Identifier: Apache-2.0
"""Distributed checkpoints of Megatron-Core know the placement: a stamp in the common state, a file beside it.

Everybody who saves and loads them, from Megatron's training loop to bridges, comes through two functions.
Source: megatron/core/dist_checkpointing/serialization.py.
"""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from routepack._errors import InvalidInput
from routepack.adapters._hooks import Replaced
from routepack.transfer.checkpoint import STAMP
from routepack.transfer.relabel import in_slot_order

_PACKAGE = "megatron.core.dist_checkpointing"
_EXPERTS: list[weakref.ref[Any]] = []
_REPLACED = Replaced()


def install(experts: weakref.ref[Any]) -> None:
    """From now on checkpoints of this process are those of these experts; of the newest, when there are several."""
    _EXPERTS.append(experts)
    if _REPLACED:
        return
    package = importlib.import_module(_PACKAGE)
    for name, how in (("save", _saving), ("load", _loading)):
        original = getattr(package, name, None)
        if not callable(original):
            raise InvalidInput(f"megatron: {_PACKAGE}.{name}: not found, wanted it for placements of checkpoints")
        replacement = functools.wraps(original)(how(original))
        for owner in list(sys.modules.values()):
            if getattr(owner, "__dict__", {}).get(name) is original:
                _REPLACED.put(owner, name, replacement)


def uninstall() -> None:
    _REPLACED.put_back()
    _EXPERTS.clear()


def is_one(checkpoint: str | os.PathLike[str]) -> bool:
    """Whether a folder is a distributed checkpoint, as Megatron-Core tells."""
    return (pathlib.Path(checkpoint) / "metadata.json").is_file()


def stamp_of(checkpoint: str | os.PathLike[str]) -> Mapping[str, Any] | None:
    """What a distributed checkpoint has inside; None: it was made without RoutePack, or is no such checkpoint."""
    if not is_one(checkpoint):
        return None
    common = importlib.import_module(_PACKAGE).load_common_state_dict(str(checkpoint))
    found = common.get(STAMP)
    return found if isinstance(found, Mapping) else None


def names_experts(checkpoint: str | os.PathLike[str]) -> bool:
    """Whether all of a distributed checkpoint is under names, which say the expert; False: it has optimizer state in
    the order of buffers, or cannot say."""
    known = getattr(importlib.import_module(f"{_PACKAGE}.serialization"), "load_sharded_metadata", None)
    if not is_one(checkpoint) or not callable(known):
        return False
    return not in_slot_order(dict(known(str(checkpoint))))


def _experts_of(state: Any) -> Any:
    """Whose a state dict is: None for one without experts, such as a critic's."""
    alive = [one for reference in _EXPERTS if (one := reference()) is not None]
    return alive[-1] if alive and _has_experts(state) else None


def _has_experts(state: Any) -> bool:
    if isinstance(state, dict):
        return any(_has_experts(value) for value in state.values())
    if isinstance(state, (list, tuple)):
        return any(_has_experts(value) for value in state)
    key = str(getattr(state, "key", ""))
    return ".experts." in key and "shared_experts" not in key


def _saving(original: Any) -> Any:
    def save(sharded_state_dict: Any, checkpoint_dir: Any, *args: Any, **kwargs: Any) -> Any:
        experts = _experts_of(sharded_state_dict)
        if experts is None:
            return original(sharded_state_dict, checkpoint_dir, *args, **kwargs)
        if experts.shown != experts.placement:
            raise InvalidInput(f"{checkpoint_dir}: found a copy's weights in the slots, wanted those in training")
        made = original({**sharded_state_dict, STAMP: experts.stamp()}, checkpoint_dir, *args, **kwargs)
        experts.save(checkpoint_dir)
        return made

    return save


def _loading(original: Any) -> Any:
    def load(sharded_state_dict: Any, checkpoint_dir: Any, *args: Any, **kwargs: Any) -> Any:
        experts = _experts_of(sharded_state_dict)
        if experts is not None and in_slot_order(sharded_state_dict):
            experts.expect_checkpoint(checkpoint_dir)
        made = original(sharded_state_dict, checkpoint_dir, *args, **kwargs)
        for state in made if isinstance(made, tuple) else (made,):
            if isinstance(state, dict):
                state.pop(STAMP, None)
        return made

    return load


__all__ = ["install", "is_one", "names_experts", "stamp_of", "uninstall"]
