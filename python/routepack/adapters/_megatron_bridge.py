# SPDX-License-Identifier: Apache-2.0
"""Names in NVIDIA Megatron-Bridge: Hugging Face gets, and gives, experts by their own numbers.

    install()      # in a training process, any number of times, before or after experts are attached

The bridge counts slots: its tasks, their order and all that is cached with them. That stays, so that tasks made once,
by whoever keeps them, are right under every placement. What changes:

- on the way out, names that `gather_from_ep_ranks` gives to the weights of a slot on all ranks, and the place of an
  expert in layouts that stack all experts of a layer;
- on the way in (`load_weights_hf_to_megatron`, `stream_weights_hf_to_megatron`), which expert a slot asks for.

Models whose experts were never attached, such as a reference model, are at home and see nothing of this. The order in
which names leave follows the placement: a receiver that counts instead of reading names needs `in_order`.
Source: megatron/bridge/models/conversion/{model_bridge,param_mapping}.py at commit 067f987d and release 0.3.1.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from routepack._errors import InvalidInput
from routepack.adapters._hooks import Replaced, need_function
from routepack.adapters.experts import attached, of_model

if TYPE_CHECKING:
    from routepack.adapters.experts import WorkerExperts

Value = TypeVar("Value")

_PACKAGE = "megatron.bridge.models.conversion"
_FRAMEWORK = "megatron.bridge"
_GATHERS = ("gather_from_ep_ranks", "gather_from_ep_ranks_scale")
_NAMES = "_cached_param_names"  #: of a bridge: it asks all stages for names once
_LOCAL_TO_GLOBAL = "_megatron_local_name_to_global"
_NUMBER = re.compile(r"\.(?:local_experts\.|weight|bias)(\d+)(?=\.|$)")
_HF_NUMBER = re.compile(r"experts\.(\d+)")  # as the bridge itself writes numbers
_HOOKS = Replaced()
_BASE: list[Any] = []  #: of all mappings
#: whose weights are on their way now, out and in
_LEAVING: list[WorkerExperts | None] = []
_COMING: list[WorkerExperts] = []


def install(*, bridges: Any = None, mappings: Any = None) -> None:
    """Puts the hooks in. The second time it does nothing.

    :param bridges: instead of megatron.bridge.models.conversion.model_bridge
    :param mappings: instead of megatron.bridge.models.conversion.param_mapping
    :raises InvalidInput: when this Megatron-Bridge has no such hooks
    """
    if _HOOKS:
        return
    try:
        _install(bridges, mappings)
    except InvalidInput:
        uninstall()
        raise


def _install(bridges: Any, mappings: Any) -> None:
    bridges = bridges or _module(f"{_PACKAGE}.model_bridge")
    mappings = mappings or _module(f"{_PACKAGE}.param_mapping")
    bridge, mapping = bridges.MegatronModelBridge, mappings.MegatronParamMapping
    rename = need_function(_FRAMEWORK, bridges, _LOCAL_TO_GLOBAL, ["models", "config", "param_name"])
    gather = need_function(_FRAMEWORK, mapping, _GATHERS[0], ["self", "megatron_weights", "hf_param_name"])
    need_function(_FRAMEWORK, bridge, "_megatron_global_param_names_all_pp_ranks", ["self"], calls=_LOCAL_TO_GLOBAL)
    need_function(_FRAMEWORK, bridge, "build_conversion_tasks", ["self", "hf_pretrained"], calls=_LOCAL_TO_GLOBAL)
    for name, parameters, how in (
        ("stream_weights_megatron_to_hf", ["self", "megatron_model"], _streaming),
        ("load_weights_hf_to_megatron", ["self", "hf_pretrained", "megatron_model"], _loading),
        ("stream_weights_hf_to_megatron", ["self", "hf_pretrained", "megatron_model", "conversion_tasks"], _coming),
    ):
        need_function(_FRAMEWORK, bridge, name, parameters)
        _HOOKS.put(bridge, name, how(vars(bridge)[name]))
    if "_accumulate_grouped_export" in vars(bridge):
        parameters = ["self", "task", "converted_weights_dict", "grouped_buffers"]
        stack = need_function(_FRAMEWORK, bridge, "_accumulate_grouped_export", parameters)
        _HOOKS.put(bridge, "_accumulate_grouped_export", _stacking(stack))
    _BASE.append(mapping)
    _HOOKS.put(mapping, _GATHERS[0], _gathering(gather))
    if _GATHERS[1] in vars(mapping):
        _HOOKS.put(mapping, _GATHERS[1], _gathering(vars(mapping)[_GATHERS[1]]))
    replacement = _naming(rename)
    for owner in list(sys.modules.values()):
        if getattr(owner, "__dict__", {}).get(_LOCAL_TO_GLOBAL) is rename:
            _HOOKS.put(owner, _LOCAL_TO_GLOBAL, replacement)
    if vars(bridges)[_LOCAL_TO_GLOBAL] is rename:  # a module that is in no table
        _HOOKS.put(bridges, _LOCAL_TO_GLOBAL, replacement)


def uninstall() -> None:
    """Takes the hooks out again."""
    _HOOKS.put_back()
    _BASE.clear()


def in_order(stream: Iterable[tuple[str, Value]], names: Sequence[str]) -> Iterator[tuple[str, Value]]:
    """What an export yields, in the order in which a receiver expects it. What comes early waits: at the most the
    weights of all experts of one layer.

    NeMo RL packs on CUDA streams by turns, so that one which waits may be read on another stream than makes it; that
    stream waits, too.

    :param names: all of them, in that order
    :raises InvalidInput: for a name that is not among them, comes twice or does not come
    """
    wanted = iter(names)
    known = set(names)
    waiting: dict[str, tuple[tuple[str, Value], Any]] = {}
    turn = next(wanted, None)
    for item in stream:
        if item[0] not in known:
            raise InvalidInput(f"{item[0]}: found a name, or one twice, that the receiver of weights does not expect")
        known.discard(item[0])
        if item[0] != turn:
            waiting[item[0]] = item, _made(item[1])
            continue
        yield item
        turn = next(wanted, None)
        while turn in waiting:
            item, made = waiting.pop(turn)
            _use(item[1], made)
            yield item
            turn = next(wanted, None)
    if turn is not None:
        raise InvalidInput(f"{turn}: found no weights of it, wanted them for the receiver")


def _made(value: Any) -> Any:
    """When a tensor of a GPU will be there; None for others."""
    return torch.cuda.current_stream(value.device).record_event() if getattr(value, "is_cuda", False) else None


def _use(value: Any, made: Any) -> None:
    """The stream of now waits for that, and keeps the memory until it has read it."""
    if made is not None:
        stream = torch.cuda.current_stream(value.device)
        stream.wait_event(made)
        value.record_stream(stream)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidInput(f"{_FRAMEWORK}: {name} cannot be imported ({error}), wanted it to name experts") from error


def _streaming(original: Any) -> Any:
    @functools.wraps(original)
    def stream_weights_megatron_to_hf(self: Any, megatron_model: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        experts = of_model(megatron_model)
        iterator = iter(original(self, megatron_model, *args, **kwargs))
        if experts is not None and experts.moved:
            _refuse_own_ways(self)
        shown = None if experts is None else experts.shown
        while True:
            if experts is not None and experts.shown != shown:
                raise InvalidInput("placement: found experts moved in the middle of an export, wanted it to end first")
            _LEAVING.append(experts)
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                _LEAVING.pop()
            yield item

    return stream_weights_megatron_to_hf


def _gathering(original: Any) -> Any:
    @functools.wraps(original)
    def gather(self: Any, megatron_weights: Any, megatron_module: Any, hf_param_name: Any) -> dict[str, Any]:
        made: dict[str, Any] = original(self, megatron_weights, megatron_module, hf_param_name)
        experts = _leaving(megatron_module)
        if experts is None or not experts.moved:
            return made
        name = str(self.megatron_param)
        renamed = {
            _HF_NUMBER.sub(lambda hit: f"experts.{_expert_of(experts, name, int(hit[1]))}", key): value
            for key, value in made.items()
        }
        if len(renamed) != len(made):
            raise InvalidInput(f"{name}: found two weights of one name among {', '.join(made)}")
        return renamed

    return gather


def _stacking(original: Any) -> Any:
    @functools.wraps(original)
    def _accumulate_grouped_export(
        self: Any,
        task: Any,
        converted_weights_dict: Any,
        model_config: Any,
        grouped_buffers: Any,
        *rest: Any,
        **more: Any,
    ) -> Any:
        experts = _leaving(task.megatron_module)
        if experts is not None and experts.moved and _NUMBER.search(task.global_param_name):
            for key in converted_weights_dict:
                if key not in grouped_buffers:
                    grouped_buffers[key] = _ByExpert(functools.partial(_expert_of, experts, task.global_param_name))
        return original(self, task, converted_weights_dict, model_config, grouped_buffers, *rest, **more)

    return _accumulate_grouped_export


class _ByExpert(dict[int, Any]):
    """Put in by slot, got out by expert."""

    def __init__(self, expert: Callable[[int], int]) -> None:
        super().__init__()
        self._expert = expert

    def __setitem__(self, slot: int, value: Any) -> None:
        super().__setitem__(self._expert(slot), value)


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def load_weights_hf_to_megatron(
        self: Any, hf_pretrained: Any, megatron_model: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with _coming_to(self, megatron_model):
            return original(self, hf_pretrained, megatron_model, *args, **kwargs)

    return load_weights_hf_to_megatron


def _coming(original: Any) -> Any:
    @functools.wraps(original)
    def stream_weights_hf_to_megatron(
        self: Any, hf_pretrained: Any, megatron_model: Any, conversion_tasks: Any = None
    ) -> Iterator[Any]:
        if conversion_tasks is None:
            models = megatron_model if isinstance(megatron_model, list) else [megatron_model]
            with _coming_to(self, models):
                conversion_tasks = self.build_conversion_tasks(hf_pretrained, models)
        elif (experts := of_model(megatron_model)) is not None and experts.moved:
            raise InvalidInput("conversion_tasks: found some that ask for experts by slot, wanted none of them given")
        yield from original(self, hf_pretrained, megatron_model, conversion_tasks)

    return stream_weights_hf_to_megatron


@contextlib.contextmanager
def _coming_to(bridge: Any, models: Any) -> Iterator[None]:
    """While weights come in, slots ask for the experts that are in them."""
    experts = of_model(models)
    if experts is None or not experts.moved:
        yield
        return
    before = bridge.__dict__.pop(_NAMES, None)
    _COMING.append(experts)
    try:
        yield
    finally:
        _COMING.pop()
        bridge.__dict__.pop(_NAMES, None)
        if before is not None:
            setattr(bridge, _NAMES, before)


def _naming(original: Any) -> Any:
    @functools.wraps(original)
    def _megatron_local_name_to_global(*args: Any, **kwargs: Any) -> str:
        name: str = original(*args, **kwargs)
        return _COMING[-1].logical_name(name) if _COMING else name

    return _megatron_local_name_to_global


def _leaving(module: Any) -> WorkerExperts | None:
    """Whose weights a mapping has in its hands: those of the export under way, else of the model with this module."""
    if _LEAVING:
        return _LEAVING[-1]
    everybody = attached()
    if module is None:  # of another pipeline stage
        return everybody[-1] if everybody else None
    for experts in reversed(everybody):
        if experts.has(module):
            return experts
    return None


def _expert_of(experts: WorkerExperts, name: str, slot: int) -> int:
    """The expert in a slot of the layer that a name of the bridge, with the number of any slot, is of."""
    hit = _NUMBER.search(name)
    if hit is None:
        raise InvalidInput(f"{name}: found no slot in it, wanted that of an expert")
    named = experts.logical_name(f"{name[: hit.start(1)]}{slot}{name[hit.end(1) :]}")
    found = _NUMBER.search(named)
    assert found is not None
    return int(found[1])


def _refuse_own_ways(bridge: Any) -> None:
    """Classes of models that do by themselves what is hooked would name slots. Looked for at each export, as they are
    imported late."""
    if hasattr(bridge, "hf_weights_cache"):
        raise InvalidInput(
            f"{type(bridge).__name__}: found a bridge that stacks experts by itself, wanted one that leaves it to "
            "Megatron-Bridge; experts of this model cannot move"
        )
    waiting: list[Any] = [below for base in _BASE for below in base.__subclasses__()]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        for name in _GATHERS:
            if name in vars(kind) and not hasattr(vars(kind)[name], "_routepack"):
                _HOOKS.put(kind, name, _refusing(vars(kind)[name], f"{kind.__name__}.{name}"))


def _refusing(original: Any, where: str) -> Any:
    @functools.wraps(original)
    def gather(self: Any, *args: Any, **kwargs: Any) -> Any:
        experts = _LEAVING[-1] if _LEAVING else None
        if experts is not None and experts.moved:
            raise InvalidInput(
                f"{where}: found a mapping that names experts by itself; experts of this model cannot move"
            )
        return original(self, *args, **kwargs)

    gather._routepack = True  # type: ignore[attr-defined]
    return gather


__all__ = ["in_order", "install", "uninstall"]
