# SPDX-License-Identifier: Apache-2.0
"""What the ranks of NeMo RL's policy workers do, as far as they need no GPU: Megatron-Core's layers and optimizer,
NeMo RL's worker and Megatron-Bridge's conversion (their own code, or in their shapes), and experts that move."""

from __future__ import annotations

import contextlib
import importlib
import json
import pathlib
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transfer.logical import Mismatch
from transfer.megatron_model import WIDTH, Variant

from routepack import InvalidInput, Placement
from routepack.adapters import _megatron_bridge, nemo_rl_experts
from routepack.adapters import experts as placed

from . import bridge_source, nemo_worker_like, nemo_worker_source
from .experts_jobs import Job, Language, job

GROUPED = Variant(exact=True, grouped=True)
STEPS = 2
RUN_CONFIG = {
    "model": {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1},
    "checkpoint": {"save_optim": True, "save_rng": False, "fully_parallel_save": True},
}
CONFIG: dict[str, Any] = {
    "megatron_cfg": {"enabled": True, "expert_model_parallel_size": 2, "empty_unused_memory_level": 0},
    "generation": None,
}


class Decoder(Language):
    """With the names of a GPT model."""

    def __init__(self, config: Any, layers: int, grouped: bool) -> None:
        from megatron.core.transformer.module import MegatronModule

        super().__init__(config, layers, grouped)
        made = self._modules.pop("layers")
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(MegatronModule(config) for _ in made)
        for block, layer in zip(self.decoder.layers, made, strict=True):
            block.mlp = layer

    def sharded_state_dict(self, metadata: Any) -> dict[str, Any]:
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        made = make_sharded_tensors_for_checkpoint({"embedding": self.embedding}, "")
        for number, layer in enumerate(self.layers):
            made.update(layer.sharded_state_dict(f"decoder.layers.{number}.mlp.", (), metadata))
        return made  # type: ignore[no-any-return]

    @property
    def layers(self) -> Any:
        held = self._modules.get("layers")
        return [block.mlp for block in self.decoder.layers] if held is None else held


class NoGpu(TorchFunctionMode):
    """What goes to a GPU is a tensor of its own, on the host; what comes from there needs no pinned memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.to and "cuda" in args:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


class Pretrained:
    """A model of Hugging Face, as far as conversion asks."""

    model_name_or_path = "nowhere"

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.config = types.SimpleNamespace(vocab_size=None)
        self.state = type("State", (dict,), {"source": types.SimpleNamespace(get_all_keys=lambda: list(state))})(state)


class Parts:
    """Where the code comes from, and a bridge for the tiny model of these tests."""

    def __init__(self, checkout: bool, workers: bool = True) -> None:
        self.checkout = checkout
        self.conversion = bridge_source.conversion() if checkout else nemo_worker_like.bridge_modules()
        self.workers = nemo_worker_source.worker() if checkout and workers else nemo_worker_like
        self.stacks = not checkout or hasattr(self.conversion.param_mapping, "FusedExpertMapping")
        kind = self.conversion.model_bridge.MegatronModelBridge
        if checkout:
            self.conversion.param_mapping.AutoMapping.register_module_type("Module", "column")
            registry = (_registry(self.conversion, stacked=False), _registry(self.conversion, stacked=True))
            self.bridges = [
                type("Bridge", (kind,), {"mapping_registry": lambda self, made=made: made()}) for made in registry
            ]
            for one in self.bridges:
                one.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
        else:
            self.bridges = [
                type("Bridge", (kind,), {"hf_names": staticmethod(_hf_name)}),
                type("Bridge", (kind,), {"hf_names": staticmethod(_stacked_name)}),
            ]

    def export(self, model: Any, hf: Pretrained, *, stacked: bool = False, tasks: Any = None) -> Iterator[Any]:
        return self.bridges[stacked]().stream_weights_megatron_to_hf(  # type: ignore[no-any-return]
            model, hf, cpu=False, show_progress=False, conversion_tasks=tasks
        )

    def exported(self, model: Any, hf: Pretrained, *, stacked: bool = False) -> dict[str, torch.Tensor]:
        return _collected(self.export([model], hf, stacked=stacked))

    def load(self, model: Any, hf: Pretrained, *, stacked: bool = False) -> None:
        self.bridges[stacked]().load_weights_hf_to_megatron(hf, [model])


def _collected(named: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        if name in found:
            raise Mismatch(f"{name} was exported twice")
        found[name] = tensor.detach().clone()
    return found


def _hf_name(name: str) -> str:
    found = re.match(r"decoder\.layers\.(\d+)\.mlp\.experts\.linear_fc([12])\.weight(\d+)$", name)
    return f"model.layers.{found[1]}.mlp.experts.{found[3]}.fc{found[2]}" if found else f"model.{name}"


def _stacked_name(name: str) -> str:
    return re.sub(r"experts\.\d+", "experts", _hf_name(name))


def _registry(conversion: Any, *, stacked: bool) -> Any:
    """Of Megatron-Bridge: the mappings by which it knows Qwen3-MoE (by expert), and Qwen3.5-MoE (stacked)."""
    mappings = conversion.param_mapping
    layer, experts, hf = ("decoder.layers.*", "decoder.layers.*.mlp.experts", "model.layers.*.mlp.experts")

    def made() -> Any:
        if stacked:
            inner = [
                mappings.FusedGatedExpertMapping(f"{experts}.linear_fc1.weight*", f"{hf}.gate_up_proj"),
                mappings.FusedExpertMapping(f"{experts}.linear_fc2.weight*", f"{hf}.down_proj"),
            ]
        else:
            inner = [
                mappings.GatedMLPMapping(
                    f"{experts}.linear_fc1.weight*", f"{hf}.*.gate_proj.weight", f"{hf}.*.up_proj.weight"
                ),
                mappings.AutoMapping(f"{experts}.linear_fc2.weight*", f"{hf}.*.down_proj.weight"),
            ]
        return conversion.mapping_registry.MegatronMappingRegistry(
            mappings.ReplicatedMapping("embedding", "model.embedding"),
            mappings.ReplicatedMapping(f"{layer}.mlp.router.weight", "model.layers.*.mlp.gate.weight"),
            *inner,
        )

    return made


def _names(checkout: bool, stacked: bool, layers: int = GROUPED.layers) -> list[str]:
    """Of Hugging Face, for the tiny model."""
    names = [] if not checkout else ["model.embedding"]
    for layer in range(layers):
        head = f"model.layers.{layer}.mlp"
        names.append(f"{head}.gate.weight")
        if stacked:
            names += [f"{head}.experts.gate_up_proj", f"{head}.experts.down_proj"]
            continue
        for e in range(GROUPED.experts):
            names += [f"{head}.experts.{e}.{word}_proj.weight" for word in ("gate", "up", "down")]
    return names


class Counting:
    """A group whose receiver knows what comes by its place alone."""

    def __init__(self) -> None:
        self.got: list[torch.Tensor] = []

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        self.got.append(tensor.detach().clone())


def worker_of(parts: Parts, made: Job, moves: bool) -> Any:
    """NeMo RL's worker around a trained model, as its `__init__` leaves it."""
    hf = Pretrained({name: torch.empty(0) for name in _names(parts.checkout, False)})
    bridge = types.SimpleNamespace(
        hf_pretrained=hf,
        get_conversion_tasks=lambda model: parts.bridges[0]().build_conversion_tasks(hf, model),
        export_hf_weights=lambda model, show_progress, conversion_tasks: parts.export(
            model, hf, tasks=conversion_tasks
        ),
    )
    own = parts.workers.MegatronPolicyWorkerImpl
    kind = type("Worker", (nemo_rl_experts.MovingExperts, own), {}) if moves else own
    one = object.__new__(kind)
    for name, value in {
        "cfg": CONFIG, "model": made.model.chunk, "optimizer": made.model.optimizer, "megatron_bridge": bridge,
        "fp8_cfg": None, "dtype": torch.float32, "draft_model": None, "sampling_params": None, "rank": 0,
        "should_disable_forward_pre_hook": False, "optimizer_cpu_offload": False, "_replica_group_cache": None,
        "offload_optimizer_for_logprob": True, "offloaded": False,
    }.items():  # fmt: skip
        setattr(one, name, value)
    one.reference_state_dict = {name: item.detach().clone() for name, item in made.model.chunk.state_dict().items()}
    return one


@contextlib.contextmanager
def worker(parts: Parts, moves: bool) -> Iterator[tuple[Job, Any]]:
    with job(GROUPED, "", body=Decoder) as made, NoGpu():
        torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: None
        torch.cuda.memory_allocated = torch.cuda.memory_reserved = lambda *_: 0
        if moves:
            made.experts = placed.attach([made.model.chunk], made.model.optimizer)
        yield made, worker_of(parts, made, moves)


def refit(one: Any) -> dict[str, torch.Tensor]:
    """What a rollout engine gets that reads names."""
    with torch.no_grad():
        return _collected(one._iter_params_with_optional_kv_scales())


def counted(parts: Parts, one: Any, told: list[str]) -> dict[str, torch.Tensor]:
    """What one gets that counts, by the names it was told at the start."""
    group = Counting()
    one.model_update_group = group
    owner: Any = parts.workers
    kept = owner.packed_broadcast_producer
    owner.packed_broadcast_producer = nemo_worker_like.packed_broadcast_producer
    try:
        one.broadcast_weights_for_collective()
    finally:
        owner.packed_broadcast_producer = kept
    return dict(zip(told, group.got, strict=True))


def placements(number: int) -> Placement:
    from transfer.megatron_training import random_placement

    return random_placement(GROUPED, number)


def train_and_refit(rank: int, checkout: bool, sabotage: str = "") -> dict[str, Any]:
    """A worker whose experts move and one whose experts stay give the same weights to rollout engines, and the same
    reference log-probabilities, after every step."""
    parts = Parts(checkout)
    stays: list[Any] = []
    with worker(parts, False) as (made, one):
        told = list(one.prepare_refit_info())
        stays.append(_views(parts, made, one))
        for number in range(STEPS):
            made.step(number)
            stays.append(_views(parts, made, one))
        last = made.probe()
    if sabotage != "bridge":
        _megatron_bridge.install(bridges=parts.conversion.model_bridge, mappings=parts.conversion.param_mapping)
    if sabotage == "order":
        _megatron_bridge.in_order = lambda stream, names: iter(stream)
    if sabotage == "reference":
        nemo_rl_experts._home = lambda placement: placement
    try:
        return _moved(parts, stays, told, last)
    finally:
        _megatron_bridge.uninstall()


def _views(parts: Parts, made: Job, one: Any) -> dict[str, dict[str, torch.Tensor]]:
    found = {"refit": refit(one)}
    if parts.stacks:
        found["stacked"] = parts.exported(made.model.chunk, _hf(parts, {}, True), stacked=True)
    return found


def _hf(parts: Parts, state: dict[str, torch.Tensor], stacked: bool) -> Pretrained:
    return Pretrained(state or {name: torch.empty(0) for name in _names(parts.checkout, stacked)})


def _moved(parts: Parts, stays: list[Any], told: list[str], last: torch.Tensor) -> dict[str, Any]:
    compared, failed = 0, ""
    with worker(parts, True) as (made, one):
        _same(one.prepare_refit_info().keys(), told)
        _same_views(_views(parts, made, one), stays[0], "at the start")
        reference = made.probe()
        for number in range(STEPS):
            to = placements(number)
            one.prepare_for_lp_inference()
            if number == 1:
                failed = failing_move(one, placements(9), number * 10)
            said = one.routepack_move(to.physical_to_logical, to.ranks, number * 10 + 1)
            if said.failed or made.experts.placement != to or said.epoch != number * 10 + 1:
                raise Mismatch(f"step {number}: {said}")
            if one.model.training:
                raise Mismatch(f"step {number}: the worker was left in another phase")
            one.prepare_for_training()
            with one.use_reference_model():
                if not torch.equal(made.probe(), reference):
                    raise Mismatch(f"step {number}: the reference gives other log-probabilities")
            if made.experts.shown != to:
                raise Mismatch(f"step {number}: the reference stayed")
            made.step(number)
            found = _views(parts, made, one)
            _same_views(found, stays[number + 1], f"step {number}")
            _same_views({"refit": counted(parts, one, told)}, stays[number + 1], f"step {number}, counted")
            compared += len(found["refit"])
        if not torch.equal(made.probe(), last):
            raise Mismatch("log-probabilities differ from those of the worker that stayed")
        loaded(parts, made, stays)
        one._train_step_state = {}
        open_step = one.routepack_move(placements(5).physical_to_logical, 2, 99)
        middle_of_export(parts, made)
        own_ways(parts, made)
        return {"compared": compared, "failed": failed, "open": open_step.failed, "where": one.routepack_placement()}


def resume(rank: int, checkout: bool, folder: str, sabotage: str = "") -> dict[str, Any]:
    """A checkpoint saved under a placement, loaded by the setup of a worker that is made anew: the same next step."""
    from megatron.core import dist_checkpointing

    place = pathlib.Path(folder) / "iter_0000002"
    with worker(Parts(False), True) as (made, _):
        for number in range(2):
            made.experts.move(placements(number), number + 4)
            made.step(number)
        if rank == 0:
            place.mkdir()
        torch.distributed.barrier()
        metadata = {"distrib_optim_sharding_type": "dp_reshardable"}
        dist_checkpointing.save(made.sharded("dp_reshardable"), str(place), content_metadata=metadata)
        if rank == 0:  # as Megatron-Bridge writes it beside a checkpoint
            (place / "run_config.yaml").write_text(json.dumps(RUN_CONFIG), encoding="utf-8")
        where, probe, wanted = made.experts.placement, made.probe(), made.step(2)["loss"]
        state = made.state()
        made.experts.move(placements(7), 9)
    if sabotage in ("file", "alone") and rank == 0:
        (place / "routepack-placement.json").unlink()
    torch.distributed.barrier()
    parts = nemo_worker_source.setup() if checkout else nemo_worker_like.setup_modules()
    try:
        with job(GROUPED, "", body=Decoder) as made, NoGpu():
            made.model.load(8)  # other weights than those of the checkpoint
            made._make_moments()
            policy, megatron = _configuration(made, str(place))
            megatron.checkpoint.load_optim = sabotage != "alone"
            nemo_worker_source.fill(parts, megatron.state, made) if checkout else _fill(parts.setup, made)
            if checkout:
                _import_worker()
            elif sabotage != "hooks":
                nemo_rl_experts.install(parts.setup, parts.checkpointing)
            parts.setup.setup_model_and_optimizer(policy, megatron)
            made.experts = placed.of_model([made.model.chunk])
            if sabotage == "alone":  # by name: right at home, too
                if not torch.equal(made.probe(), probe) or made.experts.moved:
                    raise Mismatch("weights alone came into the slots of others")
                return {"epoch": made.experts.epoch}
            if made.experts.placement != where or made.experts.epoch != 5:
                raise Mismatch(f"found {made.experts.placement.physical_to_logical.tolist()}")
            for one in made.model.optimizer.chained_optimizers:  # Megatron gives all of Adam one tensor to count in
                for held in one.optimizer.state.values():
                    held["step"] = held["step"].clone()
            found = made.step(2)["loss"]
            if found != wanted:
                raise Mismatch(f"the next step has loss {found}, wanted {wanted}")
            for name, tensor in made.state().items():
                if not torch.equal(tensor, state[name]):
                    raise Mismatch(f"{name} differs after the next step")
            return {"loss": found, "stamp": where.physical_to_logical.tolist()}
    finally:
        nemo_rl_experts.uninstall()
        _megatron_bridge.uninstall()


def _import_worker() -> None:
    """What a worker's process imports, which puts the hooks in."""
    own = sys.modules["nemo_rl.models.policy.workers.megatron_policy_worker"].MegatronPolicyWorkerImpl
    made = importlib.import_module("routepack.adapters.nemo_rl_worker").MovingMegatronPolicyWorker
    if not issubclass(made, own) or made.use_reference_model is own.use_reference_model:
        raise Mismatch(f"{made.__mro__}")
    if made.get_logprobs is not own.get_logprobs or made.configure_worker is not own.configure_worker:
        raise Mismatch("the worker lost something of NeMo RL's")


def _fill(setup: Any, made: Job) -> None:
    setup.get_model = lambda *_: [made.model.chunk]
    setup.setup_optimizer = lambda *, model, **_: (made.model.optimizer, None)


def _configuration(made: Job, folder: str) -> tuple[Any, Any]:
    """policy_cfg and megatron_cfg, as far as setup reads them."""
    some = types.SimpleNamespace
    checkpoint = some(
        load=folder, finetune=False, pretrained_checkpoint=None, ckpt_format="torch_dist", load_optim=True,
        load_rng=False, ckpt_step=None, non_persistent_ckpt_type=None, save_optim=True, save_rng=False,
        fully_parallel_load=True, dist_ckpt_strictness="assume_ok_unexpected",
        ckpt_fully_parallel_load_exchange_algo="broadcast", load_main_params_from_ckpt=False,
        use_persistent_ckpt_worker=False, non_persistent_global_ckpt_dir=None, save=None, async_strategy="mcore",
        ckpt_assume_constant_structure=False, ckpt_fully_parallel_load_process_group="dp",
    )  # fmt: skip
    model = some(
        tensor_model_parallel_size=1, pipeline_model_parallel_size=1, make_vocab_size_divisible_by=1, vocab_size=1,
        fp16=False, bf16=False, virtual_pipeline_model_parallel_size=None, moe_mlp_glu_interleave_size=None,
    )  # fmt: skip
    whole = some(
        checkpoint=checkpoint, model=model, dist=some(use_torch_fsdp2=False, use_gloo_process_groups=False), peft=None,
        ft=None, train=some(micro_batch_size=1), tokenizer=some(), ddp=some(
            use_megatron_fsdp=False, overlap_param_gather=False, align_param_gather=False
        ), optimizer=some(use_distributed_optimizer=True, overlap_param_gather_with_optimizer_step=False),
        scheduler=None, rng=some(data_parallel_random_init=False), rerun_state_machine=some(),
    )  # fmt: skip
    whole.state = some(
        cfg=whole, dp_cp=made.groups.dp_cp, start_time=0.0, initialize_async_checkpoint_worker=lambda: None,
        wandb_logger=None, mlflow_logger=None, comet_logger=None, train_state=None,
    )  # fmt: skip
    policy = {**CONFIG, "megatron_cfg": {**CONFIG["megatron_cfg"], "freeze_moe_router": False}}
    return policy, whole


def failing_move(one: Any, to: Placement, epoch: int) -> str:
    """The data plane refuses, on one rank: all say so, and experts stay."""
    from routepack.transfer import megatron as moving

    facts, before = moving.MegatronState.facts, one.routepack_placement()

    def refusing(self: Any) -> Any:
        if torch.distributed.get_rank() == 1:
            raise InvalidInput("no bytes today")
        return facts(self)

    moving.MegatronState.facts = refusing  # type: ignore[method-assign]
    said = one.routepack_move(to.physical_to_logical, to.ranks, epoch)
    moving.MegatronState.facts = facts  # type: ignore[method-assign]
    if (said.maps != before.maps).any():
        raise Mismatch("a move that failed moved experts")
    return str(said.failed)


def loaded(parts: Parts, made: Job, stays: list[Any]) -> None:
    """Weights of Hugging Face come into the slots of their experts, wherever those are."""
    for stacked, view in ((False, "refit"), (True, "stacked")):
        if view not in stays[0]:
            continue
        parts.load(made.model.chunk, Pretrained(stays[0][view]), stacked=stacked)
        found = parts.exported(made.model.chunk, _hf(parts, {}, stacked), stacked=stacked)
        _same_views({view: found}, stays[0], "loaded from Hugging Face")
        made.step(0)  # others again, before the next way in


def middle_of_export(parts: Parts, made: Job) -> None:
    stream = parts.export([made.model.chunk], _hf(parts, {}, False))
    next(iter(stream))
    made.experts.show(placements(6))
    try:
        next(stream)
    except InvalidInput as refusal:
        if "in the middle of an export" not in str(refusal):
            raise
    else:
        raise Mismatch("experts moved in the middle of an export, and nobody saw it")
    made.experts.show(made.experts.placement)


def own_ways(parts: Parts, made: Job) -> None:
    """Classes of models that name or stack experts by themselves are refused, and not let through with slots."""
    hf, model = _hf(parts, {}, False), made.model.chunk
    bridge = parts.bridges[0]()
    bridge.hf_weights_cache = {}
    _refused(lambda: next(bridge.stream_weights_megatron_to_hf([model], hf, show_progress=False)), "by itself")

    class Own(parts.conversion.param_mapping.MegatronParamMapping):  # type: ignore[misc, name-defined]
        def gather_from_ep_ranks(self, *_: Any) -> dict[str, Any]:
            return {}

    stream = parts.export([model], hf)
    next(stream)
    stream.close()
    gather: Any = Own.gather_from_ep_ranks
    _megatron_bridge._LEAVING.append(made.experts)
    _refused(lambda: gather(None), "names experts by itself")
    _megatron_bridge._LEAVING.clear()
    if gather(None) != {}:
        raise Mismatch("a mapping outside of an export was touched")


def _refused(call: Any, words: str) -> None:
    try:
        call()
    except InvalidInput as refusal:
        if words in str(refusal):
            return
        raise
    raise Mismatch(f"not refused: {words}")


def stages(rank: int) -> int:
    """PP 2 × EP 2, with Megatron-Bridge: all ranks give all layers' experts by their own numbers, and take them so."""
    from megatron.core import parallel_state
    from transfer.megatron_model import Model
    from transfer.megatron_on_cpu import HostForGpu, patch_communication, patch_for_cpu

    parts = Parts(True, workers=False)
    patch_for_cpu()
    patch_communication()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=2, expert_model_parallel_size=2, create_gloo_process_groups=False
    )
    _megatron_bridge.install(bridges=parts.conversion.model_bridge, mappings=parts.conversion.param_mapping)
    with HostForGpu(), NoGpu():
        model = Model(GROUPED, body=Decoder)
        model.load(10 + parallel_state.get_pipeline_model_parallel_rank())
        first = parallel_state.get_pipeline_model_parallel_rank() * GROUPED.layers
        for number, block in enumerate(model.chunk.module.decoder.layers):
            block.layer_number = block.mlp.layer_number = first + number + 1
        made = placed.attach([model.chunk], model.optimizer)
        for stacked in (False, True) if parts.stacks else (False,):
            hf = Pretrained({name: torch.empty(0) for name in _names(True, stacked, 2 * GROUPED.layers)})
            made.to_identity()
            wanted = parts.exported(model.chunk, hf, stacked=stacked)
            if len(wanted) != len(hf.state):
                raise Mismatch(f"found {len(wanted)} names, wanted {len(hf.state)}")
            chance = np.random.default_rng(3 + stacked)
            maps = np.stack([chance.permutation(GROUPED.experts) for _ in made.layer_numbers]).astype(np.int32)
            made.move(Placement.from_maps(ranks=2, physical_to_logical=maps), made.epoch + 1)
            _same_views({"refit": parts.exported(model.chunk, hf, stacked=stacked)}, {"refit": wanted}, "moved")
            for parameter in model.chunk.parameters():
                parameter.data.zero_()
            parts.load(model.chunk, Pretrained(wanted), stacked=stacked)
            _same_views({"refit": parts.exported(model.chunk, hf, stacked=stacked)}, {"refit": wanted}, "loaded")
            model.optimizer.reload_model_params()
    return len(wanted)


def _same(found: Any, wanted: Any) -> None:
    if list(found) != list(wanted):
        raise Mismatch(f"found {list(found)[:4]}, wanted {list(wanted)[:4]}")


def _same_views(found: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    for view, named in found.items():
        if named.keys() != wanted[view].keys():
            raise Mismatch(f"{where}, {view}: names differ: {sorted(named.keys() ^ wanted[view].keys())[:4]}")
        for name, tensor in named.items():
            if not torch.equal(tensor, wanted[view][name]):
                raise Mismatch(f"{where}, {view}: {name} differs")
        if not any(".experts" in name for name in named):
            raise Mismatch(f"{where}, {view}: no experts")
    if "refit" in found and WIDTH not in {tensor.shape[-1] for tensor in found["refit"].values()}:
        raise Mismatch(f"{where}: no weights of experts")
