# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's Megatron policy worker and Megatron-Bridge's conversion, in their shapes, for machines without either.

Written for these tests. What counts is what goes in and comes out: tasks by slot, names from `gather_from_ep_ranks`,
state dicts swapped in and out. The same tests run on the real code when environment variables name it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist


@dataclasses.dataclass
class Task:
    param_name: str
    global_param_name: str
    mapping: Any
    megatron_module: Any
    param_weight: Any


def bridge_modules() -> types.SimpleNamespace:
    """model_bridge and param_mapping, fresh."""
    bridges, mappings = (types.ModuleType("model_bridge"), types.ModuleType("param_mapping"))
    exec(  # a function whose callers look it up in their module, as the bridge's do
        _BRIDGE, vars(bridges), vars(bridges)
    )

    class MegatronParamMapping:
        """One slot's parameter. `hf_param` counts slots; without an expert in it, the layout stacks all of a layer."""

        def __init__(self, megatron_param: str, hf_param: str, group: Any = None) -> None:
            self.megatron_param, self.hf_param, self.ep_group = (megatron_param, hf_param, group)
            self.is_grouped_export = group is not None and re.search(r"experts\.\d", hf_param) is None
            self.ep_size = 1 if group is None else group.size()

        def megatron_to_hf(self, megatron_weights: Any, megatron_module: Any) -> dict[str, Any]:
            if self.ep_group is None:
                return {self.hf_param: megatron_weights}
            return self.gather_from_ep_ranks(megatron_weights, megatron_module, self.hf_param)

        def hf_to_megatron(self, hf_weights: Any, megatron_module: Any) -> Any:
            return hf_weights[_slot_of(self.megatron_param)] if self.is_grouped_export else hf_weights

        def gather_from_ep_ranks(
            self, megatron_weights: Any, megatron_module: Any, hf_param_name: Any
        ) -> dict[str, Any]:
            n, size = (megatron_module.config.num_moe_experts // self.ep_size, self.ep_size)
            local = _slot_of(self.megatron_param) % n
            everything = [torch.empty_like(megatron_weights) for _ in range(size)]
            dist.all_gather(everything, megatron_weights.detach(), group=self.ep_group)
            names = [re.sub(r"experts\.(\d+)", f"experts.{local + i * n}", hf_param_name) for i in range(size)]
            if names[0] == names[1]:
                return {names[0]: torch.stack(everything)}
            return dict(zip(names, everything, strict=True))

    mappings.MegatronParamMapping = MegatronParamMapping  # type: ignore[attr-defined]
    bridges.mapping, bridges.Task = MegatronParamMapping, Task  # type: ignore[attr-defined]
    bridges.slot_of, bridges.torch = _slot_of, torch  # type: ignore[attr-defined]
    return types.SimpleNamespace(model_bridge=bridges, param_mapping=mappings)


def _slot_of(name: str) -> int:
    found = re.search(r"\.weight(\d+)", name)
    assert found is not None
    return int(found[1])


_BRIDGE = """
import re


def _megatron_local_name_to_global(models, config, param_name, vp_stage=None):
    from megatron.core import parallel_state

    found = re.search(r"\\.experts\\..+\\.weight(\\d+)$", param_name)
    if found is None:
        return param_name
    first = config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
    first *= parallel_state.get_expert_model_parallel_rank()
    return f"{param_name[: found.start(1)]}{first + int(found[1])}"


class MegatronModelBridge:
    hf_names = None  # (global name) -> name of Hugging Face, with the slot's number or without any

    def _unwrapped(self, models):
        return [model.module if hasattr(model, "ddp_config") else model for model in models]

    def _megatron_global_param_names_all_pp_ranks(self, megatron_model):
        if not hasattr(self, "_cached_param_names"):
            config = megatron_model[0].config
            names = []
            for name, _ in megatron_model[0].named_parameters():
                names.append(_megatron_local_name_to_global(megatron_model, config, name))
            self._cached_param_names = sorted(
                names, key=lambda name: [int(n) for n in re.findall(r"(?:layers\\.|weight)(\\d+)", name)] + [0, 0]
            )
        return self._cached_param_names

    def build_conversion_tasks(self, hf_pretrained, megatron_model):
        from megatron.core import parallel_state

        group = parallel_state.get_expert_model_parallel_group()
        models = self._unwrapped(megatron_model)
        found = {}
        for name, parameter in models[0].named_parameters():
            whole = _megatron_local_name_to_global(models, models[0].config, name)
            made = mapping(whole, self.hf_names(whole), group if ".experts." in whole else None)
            found[whole] = Task(name, whole, made, models[0], parameter)
        return [found[name] for name in self._megatron_global_param_names_all_pp_ranks(models)]

    def stream_weights_megatron_to_hf(self, megatron_model, hf_pretrained, conversion_tasks=None, **_):
        tasks = conversion_tasks or self.build_conversion_tasks(hf_pretrained, megatron_model)
        buffers = {}
        for task in tasks:
            made = task.mapping.megatron_to_hf(task.param_weight, task.megatron_module)
            if task.mapping.is_grouped_export:
                config = task.megatron_module.config
                made = self._accumulate_grouped_export(task, made, config, buffers, {}) or {}
            yield from made.items()

    def _accumulate_grouped_export(self, task, converted_weights_dict, model_config, grouped_buffers, hf_state_dict):
        n = model_config.num_moe_experts // task.mapping.ep_size
        (key, value), = converted_weights_dict.items()
        held = grouped_buffers.setdefault(key, {})
        for i in range(task.mapping.ep_size):
            held[slot_of(task.param_name) % n + i * n] = value[i]
        if len(held) < model_config.num_moe_experts:
            return None
        del grouped_buffers[key]
        return {key: torch.stack([held[i] for i in range(len(held))])}

    def load_weights_hf_to_megatron(self, hf_pretrained, megatron_model):
        for name, weight in self.stream_weights_hf_to_megatron(hf_pretrained, megatron_model):
            dict(self._unwrapped(megatron_model)[0].named_parameters())[name].data.copy_(weight)
        return megatron_model

    def stream_weights_hf_to_megatron(self, hf_pretrained, megatron_model, conversion_tasks=None):
        for task in conversion_tasks or self.build_conversion_tasks(hf_pretrained, megatron_model):
            yield task.param_name, task.mapping.hf_to_megatron(hf_pretrained.state[task.mapping.hf_param], None)
"""


class MegatronPolicyWorkerImpl:
    """What of the worker knows weights by slot."""

    _train_step_state: Any = None

    def __init__(self, config: Any, made: Any, bridge: Any) -> None:
        self.cfg, self.model, self.optimizer, self.megatron_bridge = (config, made.chunk, made.optimizer, bridge)
        self.refit_conversion_tasks: Any = None
        self.offloaded = False

    @contextlib.contextmanager
    def use_reference_model(self) -> Iterator[None]:
        with torch.no_grad():
            kept = {name: item.detach().clone() for name, item in self.model.state_dict().items()}
            self._apply(self.reference_state_dict)
            yield
            self._apply(kept)

    reference_state_dict: dict[str, torch.Tensor]

    def _apply(self, source: dict[str, torch.Tensor]) -> None:
        for name, item in self.model.state_dict().items():
            item.copy_(source[name])

    def prepare_refit_info(self) -> Any:
        self.refit_conversion_tasks = self.megatron_bridge.get_conversion_tasks([self.model])
        return {name: (tensor.shape, tensor.dtype) for name, tensor in self._iter_params_with_optional_kv_scales()}

    def _iter_params_with_optional_kv_scales(self, kv_scales: Any = None, conversion_tasks: Any = None) -> Any:
        tasks = conversion_tasks or self.refit_conversion_tasks
        yield from self.megatron_bridge.export_hf_weights([self.model], show_progress=False, conversion_tasks=tasks)

    def broadcast_weights_for_collective(self, kv_scales: Any = None, **_: Any) -> None:
        packed_broadcast_producer(
            iterator=self._iter_params_with_optional_kv_scales(kv_scales=kv_scales), group=self.model_update_group,
            src=0, post_iter_func=lambda item: item[1],
        )  # fmt: skip

    model_update_group: Any = None

    def prepare_for_training(self) -> None:
        self.offloaded = False
        self.model.train()

    def prepare_for_lp_inference(self) -> None:
        self.offloaded = True
        self.model.eval()


def packed_broadcast_producer(iterator: Any, group: Any, src: int, post_iter_func: Any, **_: Any) -> None:
    for item in iterator:
        group.broadcast(post_iter_func(item), src=src)


def setup_modules() -> types.SimpleNamespace:
    """nemo_rl.models.megatron.setup and megatron.bridge.training.checkpointing, fresh."""
    checkpointing, setup = types.ModuleType("checkpointing"), types.ModuleType("setup")
    exec(_CHECKPOINTING, vars(checkpointing), vars(checkpointing))
    exec(_SETUP, vars(setup), vars(setup))
    setup.load_checkpoint = checkpointing.load_checkpoint  # type: ignore[attr-defined]
    return types.SimpleNamespace(setup=setup, checkpointing=checkpointing)


_CHECKPOINTING = """
import torch


def load_checkpoint(state, model, optimizer, opt_param_scheduler, strict=True, checkpointing_context=None):
    return _load_checkpoint_from_path(state.cfg.checkpoint.load, state, model, optimizer, strict)


def _load_checkpoint_from_path(load_dir, state, model, optimizer, strict):
    common, folder, release, _ = _load_base_checkpoint(load_dir, state.cfg.checkpoint, rank0=True)
    model = [chunk.module for chunk in model]
    metadata = common["content_metadata"]
    metadata = {**metadata, "dp_cp_group": state.dp_cp}
    made = {"model": model[0].sharded_state_dict(metadata)}
    if not state.cfg.checkpoint.finetune and state.cfg.checkpoint.load_optim and optimizer is not None:
        made["optimizer"] = optimizer.sharded_state_dict(made["model"], is_loading=True, metadata=metadata)
    loaded, *_ = _load_base_checkpoint(load_dir, state.cfg.checkpoint, False, made)
    model[0].load_state_dict(loaded["model"], strict=False)
    if "optimizer" in made:
        with torch.no_grad():
            optimizer.load_state_dict(loaded["optimizer"])


def _load_base_checkpoint(load_dir, ckpt_cfg, rank0=False, sharded_state_dict=None):
    from megatron.core import dist_checkpointing

    if rank0:
        return dist_checkpointing.load_common_state_dict(load_dir), load_dir, False, None
    return dist_checkpointing.load(sharded_state_dict, load_dir), load_dir, False, None
"""

_SETUP = """
def get_model(*args, **kwargs):
    raise NotImplementedError


def setup_optimizer(*, optimizer_config, scheduler_config, model, use_gloo_process_groups):
    raise NotImplementedError


def setup_model_and_optimizer(policy_cfg, megatron_cfg, load_optimizer=True):
    state = megatron_cfg.state
    model = get_model(megatron_cfg)
    optimizer, _ = setup_optimizer(
        optimizer_config=None, scheduler_config=None, model=model, use_gloo_process_groups=False
    )
    if megatron_cfg.checkpoint.load is not None:
        load_checkpoint(state, model, optimizer, None)
    return model[0], optimizer
"""
