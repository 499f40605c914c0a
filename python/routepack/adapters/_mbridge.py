# SPDX-License-Identifier: Apache-2.0
"""Names in the `mbridge` package: what it exports, saves and loads is by expert, whatever the slots.

It counts experts by rank and slot. For a model that has experts of ours, the name that goes into a conversion says the
expert instead: every tensor of an expert passes `_weight_to_hf_format` on its way out, also into layouts that stack
all experts of a layer, which thereby come in the order of experts. On the way in the map of names says it, and with
stacked layouts `_weight_to_mcore_format`. Models without experts of ours, such as a reference model, are left alone.
Source: mbridge/core/bridge.py and mbridge/models/*/base_bridge.py of mbridge 0.15.1 and at commit 10cb17f.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from routepack._errors import InvalidInput
from routepack.adapters._hooks import Replaced, module_of, need_function

if TYPE_CHECKING:
    from routepack.adapters.experts import WorkerExperts

_EXPERT = re.compile(r"\.mlp\.experts\.linear_fc[12]\.(?:weight|bias)(\d+)$")
_OUT, _MAP, _IN = "_weight_to_hf_format", "_weight_name_mapping_mcore_local_to_global", "_weight_to_mcore_format"
_REPLACED = Replaced()


def install(*, bridge: Any = None) -> None:
    """Puts the hooks into `mbridge`'s Bridge, in this process; twice is fine.

    :param bridge: the class, instead of mbridge.core.bridge.Bridge
    :raises InvalidInput: when there is no such package, or it has no such hooks
    """
    owner = bridge or module_of("mbridge", "mbridge.core.bridge").Bridge
    if _REPLACED.has(owner):
        return
    need_function("mbridge", owner, _OUT, ["self", "mcore_weights_name", "mcore_weights"])
    need_function("mbridge", owner, _MAP, ["self", "model", "consider_ep"])
    need_function("mbridge", owner, _IN, ["self", "mcore_weights_name", "hf_weights"])
    need_function("mbridge", owner, "export_weights", ["self", "models"])
    need_function("mbridge", owner, "save_weights", ["self", "models"])
    need_function("mbridge", owner, "load_weights", ["self", "models"])
    _REPLACED.put(owner, "export_weights", _exporting(vars(owner)["export_weights"]))
    _REPLACED.put(owner, "save_weights", _saving(vars(owner)["save_weights"]))
    _REPLACED.put(owner, "load_weights", _loading(vars(owner)["load_weights"]))


def uninstall() -> None:
    """Takes the hooks out again."""
    _REPLACED.put_back()


def leaving(bridge: Any, experts: WorkerExperts) -> contextlib.AbstractContextManager[object]:
    """While code of others calls this bridge's `_weight_to_hf_format`: names of slots become those of experts."""
    return _Out(bridge, experts)


def entering(bridge: Any, experts: WorkerExperts) -> contextlib.AbstractContextManager[object]:
    """While code of others loads weights with this bridge's functions: slots get the experts that they hold."""
    return _In(bridge, experts)


def _experts_of(models: Any) -> WorkerExperts | None:
    from routepack.adapters import experts

    return experts.of_model(list(models) if isinstance(models, (list, tuple)) else [models])


def _exporting(original: Any) -> Any:
    @functools.wraps(original)
    def export_weights(self: Any, models: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        experts = _experts_of(models)
        if experts is None:
            yield from original(self, models, *args, **kwargs)
            return
        with _Out(self, experts) as out:
            shown = experts.shown
            for item in original(self, models, *args, **kwargs):
                yield item
                if experts.shown != shown:
                    raise InvalidInput(
                        "placement: found experts moved in the middle of an export, wanted its end first"
                    )
            if not out.renamed:
                raise InvalidInput(f"mbridge: {type(self).__name__} exported no expert through {_OUT}, wanted all")

    return export_weights


def _saving(original: Any) -> Any:
    @functools.wraps(original)
    def save_weights(self: Any, models: Any, *args: Any, **kwargs: Any) -> Any:
        experts = _experts_of(models)
        if experts is None:
            return original(self, models, *args, **kwargs)
        with _Out(self, experts):  # for ways to save that do not go through export_weights
            return original(self, models, *args, **kwargs)

    return save_weights


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def load_weights(self: Any, models: Any, *args: Any, **kwargs: Any) -> Any:
        experts = _experts_of(models)
        if experts is None:
            return original(self, models, *args, **kwargs)
        with _In(self, experts):
            return original(self, models, *args, **kwargs)

    return load_weights


class _Own(contextlib.AbstractContextManager[object]):
    """Methods of one bridge that go before those of its class, for a while."""

    def __init__(self, bridge: Any, experts: WorkerExperts) -> None:
        self.bridge, self.experts = bridge, experts
        self.done = False
        self._put: list[tuple[str, Any, Any]] = []

    def put(self, name: str, method: Any) -> None:
        method.routepack_owner = self
        self._put.append((name, method, self.bridge.__dict__.get(name)))
        setattr(self.bridge, name, method)

    def __exit__(self, *_: object) -> None:
        self.done = True
        while self._put:
            name, method, before = self._put.pop()
            if self.bridge.__dict__.get(name) is not method:
                continue  # an export that nobody finished, and a later one is under way
            owner = getattr(before, "routepack_owner", None)
            if before is None or (owner is not None and owner.done):
                delattr(self.bridge, name)
            else:
                setattr(self.bridge, name, before)


class _Out(_Own):
    """Names of slots of all ranks become those of experts."""

    renamed = 0

    def __enter__(self) -> _Out:
        # The class's own, whoever subclasses it: a method that an outer export put here has renamed already.
        convert = getattr(type(self.bridge), _OUT)

        @functools.wraps(convert)
        def weight_to_hf_format(mcore_weights_name: str, *args: Any, **kwargs: Any) -> Any:
            if _EXPERT.search(mcore_weights_name):
                self.renamed += 1
                mcore_weights_name = self.experts.logical_name(mcore_weights_name)
            return convert(self.bridge, mcore_weights_name, *args, **kwargs)

        self.put(_OUT, weight_to_hf_format)
        return self


class _In(_Own):
    """Slots of this rank are filled with the experts that they hold."""

    def __enter__(self) -> _In:
        mapping, convert = getattr(type(self.bridge), _MAP), getattr(type(self.bridge), _IN)
        logical: dict[str, str] = {}  # of the chunk that is loaded now

        @functools.wraps(mapping)
        def names(model: Any, consider_ep: bool = True, *args: Any, **kwargs: Any) -> Any:
            made = mapping(self.bridge, model, consider_ep, *args, **kwargs)
            if consider_ep:
                for local, name in made.items():
                    if _EXPERT.search(name):
                        made[local] = logical[local] = self.experts.logical_name(name)
            return made

        @functools.wraps(convert)
        def weight_to_mcore_format(mcore_weights_name: str, *args: Any, **kwargs: Any) -> Any:
            return convert(self.bridge, self._as_counted(mcore_weights_name, logical), *args, **kwargs)

        self.put(_MAP, names)
        self.put(_IN, weight_to_mcore_format)
        return self

    def _as_counted(self, name: str, logical: dict[str, str]) -> str:
        """The local name by which a bridge, that adds the rank's first slot, takes the expert out of a stack."""
        expert = None if name not in logical else _EXPERT.search(logical[name])
        local = _EXPERT.search(name)
        if expert is None or local is None:
            return name
        here = self.experts.placement
        first = int(self.bridge.mpu.ep_rank) * (here.experts // here.ranks)
        return f"{name[: local.start(1)]}{int(expert[1]) - first}"  # less than 0 for experts of ranks before


__all__ = ["entering", "install", "leaving", "uninstall"]
