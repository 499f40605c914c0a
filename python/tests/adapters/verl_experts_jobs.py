# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a verl actor do, as far as they need no GPU: verl's workers, its Megatron engine with offloading,
its checkpoint manager and its trainer, mbridge, and Megatron-Core's layers and optimizer, while experts move."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from transfer.logical import Mismatch
from transfer.megatron_model import HIDDEN, WIDTH, Layers, Model, Variant
from transfer.megatron_training import random_placement

from routepack import InvalidInput, Placement
from routepack.adapters import Settings, verl, verl_worker

from .batches import PATIENT
from .experts_jobs import CAP, COST, Job, Language, batch_of, job, replayed

HALF = Variant(grouped=True)  # bf16 with fp32 masters, as verl trains
EXACT = Variant(grouped=True, exact=True)
VOCABULARY, MINI = 50, 24
#: optimizer state in the order of buffers, which is verl's default, and by name
CHECKPOINTS = {"global_step_2": False, "by_name": True}


class Named(Language):
    """With the names of a GPT model."""

    def __init__(self, config: Any, layers: int, grouped: bool) -> None:
        super().__init__(config, layers, grouped)
        made, embedding = self._modules.pop("layers"), self._parameters.pop("embedding")
        words = torch.nn.Module()
        words.weight = embedding
        self.embedding = torch.nn.Module()
        self.embedding.word_embeddings = words
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(torch.nn.Module() for _ in made)
        for block, layer in zip(self.decoder.layers, made, strict=True):
            block.mlp, block.layer_number = layer, layer.layer_number

    @property
    def layers(self) -> Any:
        held = self._modules.get("layers")
        return [block.mlp for block in self.decoder.layers] if held is None else held

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        words = self.embedding.word_embeddings.weight
        return Layers.forward(self, words[ids][:, None])[:, 0] @ words.T

    def sharded_state_dict(self, metadata: Any) -> dict[str, Any]:
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        name = "embedding.word_embeddings.weight"
        made = make_sharded_tensors_for_checkpoint({name: self.embedding.word_embeddings.weight}, "")
        for number, layer in enumerate(self.layers):
            made.update(layer.sharded_state_dict(f"decoder.layers.{number}.mlp.", (), metadata))
        return made  # type: ignore[no-any-return]


class NoPins(TorchFunctionMode):
    """Pinned memory needs a GPU, and what leaves one is a copy. Memory that numpy sees cannot be given back."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.numpy:
            args = (args[0].clone(), *args[1:])
        made = func(*args, **kwargs)
        return made.clone() if func is torch.Tensor.cpu else made


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    """verl's functions take the device by its name, and number."""
    from verl.utils import megatron_utils
    from verl.workers.engine.megatron import transformer_impl

    module: Any
    for module in (megatron_utils, transformer_impl):
        module.get_device_id = lambda: "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def hugging_face(folder: pathlib.Path) -> Any:
    """A small Qwen3 model, as far as `Named` has it. @returns its configuration"""
    from safetensors.torch import save_file
    from transformers import Qwen3MoeConfig

    made: Any = Qwen3MoeConfig
    config = made(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=WIDTH, moe_intermediate_size=WIDTH, head_dim=8,
        num_hidden_layers=HALF.layers, num_attention_heads=2, num_key_value_heads=2, num_experts=HALF.experts,
        num_experts_per_tok=2, tie_word_embeddings=True, architectures=["Qwen3MoeForCausalLM"],
    )  # fmt: skip
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
        chance = torch.Generator().manual_seed(8)
        shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
        for layer in range(HALF.layers):
            at = f"model.layers.{layer}.mlp"
            shapes[f"{at}.gate.weight"] = (HALF.experts, HIDDEN)
            for e in range(HALF.experts):
                shapes[f"{at}.experts.{e}.gate_proj.weight"] = (WIDTH, HIDDEN)
                shapes[f"{at}.experts.{e}.up_proj.weight"] = (WIDTH, HIDDEN)
                shapes[f"{at}.experts.{e}.down_proj.weight"] = (HIDDEN, WIDTH)
        state = {
            name: (torch.randn(shape, generator=chance) * 0.3).to(torch.bfloat16) for name, shape in shapes.items()
        }
        save_file(state, folder / "model.safetensors")
        index = {"weight_map": dict.fromkeys(state, "model.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        config.save_pretrained(folder)
    dist.barrier()
    return config


def load(model: Model, bridge: Any, hf: pathlib.Path) -> None:
    """As verl's engine does when it builds a model."""
    bridge.load_weights([model.chunk], str(hf))
    model.optimizer.reload_model_params()


def configuration() -> Any:
    """Of verl's actor, as far as workers ask."""
    from omegaconf import OmegaConf

    actor = {"strategy": "megatron", "megatron": {"router_replay": {"mode": "R3"}}}
    return OmegaConf.create({"actor": actor, "rollout": {"checkpoint_engine": {"backend": "naive"}}, "model": {}})


def worker_of(made: Job, bridge: Any, hf_config: Any) -> Any:
    """verl's worker around verl's engine around this model, as their `init_model` and `initialize` put them together"""
    from omegaconf import OmegaConf
    from verl.experimental.separation.engine_workers import DetachActorWorker
    from verl.trainer.config import CheckpointConfig
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager
    from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead
    from verl.workers.engine_workers import TrainingWorker

    chunks, optimizer, half = [made.model.chunk], made.model.optimizer, not made.model.variant.exact
    engine = object.__new__(MegatronEngineWithLMHead)
    engine.module, engine.optimizer, engine.lr_scheduler = chunks, optimizer, None
    engine.bridge, engine.vanilla_bridge, engine.provider, engine.peft_cls = bridge, True, None, None
    engine.mode, engine._hf_export_tasks, engine._qat_enabled = None, None, False
    engine._is_offload_param = engine._is_offload_optimizer = half  # fp32 weights are their own masters
    contents = ["model", "optimizer"]
    engine.checkpoint_mananager = MegatronCheckpointManager(
        config=OmegaConf.create(
            {
                "model": {"path": ""},
                "megatron": {
                    "dist_ckpt_optim_fully_reshardable": False,
                    "distrib_optim_fully_reshardable_mem_efficient": False,
                },
            }
        ),
        checkpoint_config=CheckpointConfig(save_contents=contents, load_contents=contents),
        model_config=hf_config, transformer_config=bridge.config, role="actor", model=chunks, arch="Qwen3Moe",
        hf_config=hf_config, param_dtype=torch.bfloat16, share_embeddings_and_output_weights=True,
        processing_class=None, optimizer=optimizer, optimizer_scheduler=None, use_distributed_optimizer=True,
        bridge=bridge,
    )  # fmt: skip
    engine.to("cpu", model=engine._is_offload_param, optimizer=engine._is_offload_optimizer, grad=half)
    worker = object.__new__(DetachActorWorker)
    worker.config, worker.role, worker._strategy_handlers = configuration(), "actor", None
    worker.actor = object.__new__(TrainingWorker)
    worker.actor.engine = engine
    return worker


def sync(worker: Any) -> dict[str, torch.Tensor]:
    """What a rollout engine gets, and the model goes back to the host, as in verl's `update_weights`."""
    engine = worker.actor.engine
    sent: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, tensor in engine.get_per_tensor_param()[0]:
            if name in sent:
                raise Mismatch(f"{name} was sent twice")
            sent[name] = tensor.detach().clone()
    if engine.is_param_offload_enabled:
        engine.to("cpu", model=True, optimizer=False, grad=False)
    return sent


def step(made: Job, worker: Any, number: int) -> None:
    with worker.actor.engine.train_mode():
        made.step(number)


def probe(made: Job, worker: Any) -> torch.Tensor:
    """Log-probabilities of the actor's weights now in its slots."""
    with worker.actor.engine.eval_mode():
        return made.probe()


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], where: str) -> None:
    if found.keys() != wanted.keys():
        raise Mismatch(f"{where}: names differ: {sorted(found.keys() ^ wanted.keys())[:4]}")
    for name, tensor in wanted.items():
        if not torch.equal(found[name], tensor):
            raise Mismatch(f"{where}: {name} differs")
    if sum(".experts." in name for name in wanted) != 3 * HALF.experts * HALF.layers:
        raise Mismatch(f"{where}: found {len(wanted)} names, wanted those of all experts")


def bridge_of(config: Any, dtype: torch.dtype) -> Any:
    from verl.models.mcore.mbridge import AutoBridge

    return AutoBridge.from_config(config, dtype=dtype)


def everything(rank: int, folder: str, checkout: bool) -> dict[str, Any]:
    """All that follows, in one set of processes.

    :param checkout: of Megatron-Bridge, for engines that do not use mbridge
    """
    here = pathlib.Path(folder)
    hf_config = hugging_face(here / "hf")
    verl_worker.install()
    with without_gpu():
        stays, last = life(here, hf_config)
        found: dict[str, Any] = {
            "moved": moved_life(here, hf_config, stays, last),
            "resumed": resumed(here / "global_step_2" / "actor", hf_config, stays, True),
            "resumed without asking": resumed(here / "global_step_2" / "actor", hf_config, stays, False),
            "resumed by name": resumed(here / "by_name" / "actor", hf_config, stays, False),
            "on other ranks": [elsewhere(here / "by_name" / "actor", hf_config, stays, ep) for ep in (4, 1)],
            "refused": refused(here, hf_config),
        }
        found["other bridge"] = other_bridge(checkout)
        found["driven"] = driven(here, hf_config, "both")
        found["own"] = driven(here, hf_config, "")
    return found


@contextlib.contextmanager
def actor(here: pathlib.Path, hf_config: Any, variant: Variant = HALF) -> Iterator[tuple[Job, Any]]:
    with job(variant, "", body=Named) as made, NoPins():
        bridge = bridge_of(hf_config, torch.float32 if variant.exact else torch.bfloat16)
        load(made.model, bridge, here / "hf")
        yield made, worker_of(made, bridge, hf_config)


def life(here: pathlib.Path, hf_config: Any) -> tuple[list[dict[str, torch.Tensor]], torch.Tensor]:
    """Of an actor whose experts stay: what was sent after each step, and log-probabilities at the end."""
    with actor(here, hf_config) as (made, worker):
        sent = [sync(worker)]
        for number in range(4):
            step(made, worker, number)
            sent.append(sync(worker))
        return sent, probe(made, worker)


def moved_life(
    here: pathlib.Path, hf_config: Any, stays: list[dict[str, torch.Tensor]], last: torch.Tensor
) -> dict[str, Any]:
    """The same with moves before every step, a reference model in the process, and copies of the actor of before."""
    from megatron.core.transformer.moe.router_replay import RouterReplay

    from routepack.adapters import _mbridge

    with actor(here, hf_config) as (made, worker):
        routers = len(RouterReplay.global_router_replay_instances)
        reference = Model(HALF, body=Named)
        del RouterReplay.global_router_replay_instances[routers:]
        bridge = bridge_of(hf_config, torch.bfloat16)
        load(reference, bridge, here / "hf")
        trained = made.model
        placement, epoch, refusal = worker.routepack_placement()
        if refusal or epoch or placement != Placement.identity(HALF.layers, HALF.experts, HALF.ep):
            raise Mismatch(f"found {refusal!r} at the start")
        same(sync(worker), stays[0], "at the start")
        worker.save_model_to_cpu("old")
        old = probe(made, worker)
        for number in range(4):
            to = random_placement(HALF, number)
            if worker.routepack_move(to, number + 1) != (to, number + 1, ""):
                raise Mismatch(f"step {number}: not moved")
            if worker.actor.engine.module[0].expert_parallel_buffers[0].param_data.untyped_storage().size():
                raise Mismatch(f"step {number}: a move left the weights on the device")
            same(sync(worker), stays[number], f"step {number}, after the move")
            made.model = reference
            ref = made.probe()
            made.model = trained
            if not torch.equal(ref, old):  # it began as the actor did
                raise Mismatch(f"step {number}: the reference gives other log-probabilities")
            worker.save_model_to_cpu(number)
            worker.restore_model_from_cpu("old")
            if not torch.equal(probe(made, worker), old):
                raise Mismatch(f"step {number}: the copy gives other log-probabilities")
            worker.restore_model_from_cpu(number)
            worker.clear_cpu_model(number)
            step(made, worker, number)
            same(sync(worker), stays[number + 1], f"step {number}, weight sync")
            if number == 1:
                for folder, by_name in CHECKPOINTS.items():
                    settings = worker.actor.engine.checkpoint_mananager.config.megatron
                    settings.dist_ckpt_optim_fully_reshardable = by_name
                    worker.save_checkpoint(str(here / folder / "actor"), global_step=2)
        same(dict(bridge.export_weights([reference.chunk])), stays[0], "the reference's own export")
        if not torch.equal(probe(made, worker), last):
            raise Mismatch("log-probabilities differ from those of the actor that stayed")
        _mbridge.uninstall()
        blind = sync(worker)  # what it would be without the names
        _mbridge.install()
        return {"compared": len(blind), "differ": sum(not torch.equal(blind[k], stays[-1][k]) for k in blind)}


def resumed(folder: pathlib.Path, hf_config: Any, stays: list[dict[str, torch.Tensor]], asks: bool) -> dict[str, Any]:
    """A fresh actor goes on from a checkpoint; one that nobody asked where its experts are finds out by itself."""
    with actor(folder.parent.parent, hf_config) as (made, worker):
        if asks:
            worker.routepack_placement()
        else:
            verl_worker.uninstall()
            verl_worker.install()
        made._make_moments()
        worker.load_checkpoint(str(folder))
        for one in made.model.optimizer.chained_optimizers:  # Megatron gives all of torch's Adam one tensor to count in
            for state in one.optimizer.state.values():
                state["step"] = state["step"].clone()
        placement, epoch, _ = worker.routepack_placement(False)
        if placement != random_placement(HALF, 1):
            raise Mismatch("experts are not where the checkpoint says")
        same(sync(worker), stays[2], "loaded")
        step(made, worker, 2)
        same(sync(worker), stays[3], "one step later")
        worker.routepack_move(random_placement(HALF, 9), epoch + 1)
        step(made, worker, 3)
        same(sync(worker), stays[4], "a move and a step later")
        return {"epoch": epoch, "saved": saved(folder, stays[2])}


def elsewhere(folder: pathlib.Path, hf_config: Any, stays: list[dict[str, torch.Tensor]], ep: int) -> int:
    """An actor of another expert-parallel size goes on from a checkpoint with names. @returns its epoch, -1 for none"""
    with actor(folder.parent.parent, hf_config, dataclasses.replace(HALF, ep=ep)) as (made, worker):
        worker.actor.engine.checkpoint_mananager.config.megatron.dist_ckpt_optim_fully_reshardable = True
        made._make_moments()
        worker.load_checkpoint(str(folder))
        same(sync(worker), stays[2], f"loaded with ep {ep}")
        placement, epoch, _ = worker.routepack_placement(False)
        if placement not in (None, Placement.identity(HALF.layers, HALF.experts, ep)):
            raise Mismatch("experts are not at home")
        return -1 if placement is None else epoch


def saved(folder: pathlib.Path, wanted: dict[str, torch.Tensor]) -> int:
    """The Hugging Face part of the checkpoint. @returns how many tensors"""
    from safetensors.torch import load_file

    held = load_file(folder / "model" / "huggingface" / "model.safetensors")
    same(held, wanted, "Hugging Face")
    return len(held)


def refused(here: pathlib.Path, hf_config: Any) -> list[str]:
    """What a load says whose checkpoint lost its placement, and what an engine says that cannot move."""
    from routepack.transfer.checkpoint import placement_path

    folder, said = here / "global_step_2" / "actor", []
    with actor(here, hf_config) as (_, worker):
        engine = worker.actor.engine
        for name, value in (("peft_cls", object()), ("_qat_enabled", True), ("optimizer", None)):
            before = getattr(engine, name)
            setattr(engine, name, value)
            said.append(worker.routepack_placement()[2])
            setattr(engine, name, before)
        dist.barrier()
        if dist.get_rank() == 0:
            placement_path(folder / "optimizer" / "dist_ckpt").unlink()
        dist.barrier()
        try:
            worker.load_checkpoint(str(folder))
        except InvalidInput as refusal:
            said.append(str(refusal))
    return said


def other_bridge(checkout: bool) -> int:
    """verl's engine with Megatron-Bridge, whose tasks verl makes once. @returns how many tensors were compared"""
    import types

    from routepack.adapters import _megatron_bridge

    from . import nemo_rl_experts_jobs as nemo
    from . import nemo_worker_source

    source: Any = nemo_worker_source
    source.worker = lambda: types.SimpleNamespace(workers=None)  # of NeMo RL nothing is needed
    parts = nemo.Parts(checkout)
    _megatron_bridge.uninstall()
    _megatron_bridge.install(bridges=parts.conversion.model_bridge, mappings=parts.conversion.param_mapping)
    hf = nemo.Pretrained({name: torch.empty(0) for name in nemo._names(checkout, False)})
    bridge = types.SimpleNamespace(
        config=None,
        get_conversion_tasks=lambda model: parts.bridges[0]().build_conversion_tasks(hf, model),
        export_hf_weights=lambda model, conversion_tasks: parts.export(model, hf, tasks=conversion_tasks),
    )
    with job(EXACT, "", body=nemo.Decoder) as made, NoPins():
        worker = worker_of(made, bridge, None)
        worker.actor.engine.vanilla_bridge, worker.actor.engine.provider = False, object()
        wanted = sync(worker)
        refusal = worker.routepack_placement()[2]
        for number in range(2):
            refusal = refusal or worker.routepack_move(random_placement(EXACT, number), number + 1)[2]
            if refusal:
                raise Mismatch(refusal)
            found = sync(worker)
            if found.keys() != wanted.keys() or not all(torch.equal(found[name], wanted[name]) for name in wanted):
                raise Mismatch(f"move {number}: other weights are sent")
        return len(wanted)


class Group:
    """verl's worker group as a driver calls it, which is the first rank here; calls come over gloo instead of Ray."""

    def __init__(self, made: Job, worker: Any) -> None:
        self.made, self.worker = made, worker
        self._dispatch_info = {"actor": list(range(dist.get_world_size()))}
        self.losses: list[float] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (not hasattr(self.worker, name) and name != "_train"):
            raise AttributeError(name)
        return lambda *args: self.call(name, args)

    def call(self, name: str, args: Any) -> list[Any]:
        box = [(name, args)]
        dist.broadcast_object_list(box, src=0)
        said: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(said, self.answer(*box[0]))
        for answer in said:
            if isinstance(answer, BaseException):
                raise answer
        return said

    def answer(self, name: str, args: Any) -> Any:
        try:
            return train(self.made, self.worker, *args) if name == "_train" else getattr(self.worker, name)(*args)
        except Exception as error:  # goes to the driver, as with Ray
            return error

    def serve(self) -> None:
        """What ranks do that are no driver."""
        box: list[Any] = [None]
        while True:
            dist.broadcast_object_list(box, src=0)
            if box[0][0] == "stop":
                return
            dist.all_gather_object([None] * dist.get_world_size(), self.answer(*box[0]))

    def update_actor(self, data: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        answers = self.call("_train", (data,))
        self.losses.append(sum(loss for loss, _ in answers))
        self.cells = [cells for _, cells in answers]
        return tu.get_tensordict({}, non_tensor_dict={"metrics": {"mfu": [0.0]}})


def train(made: Job, worker: Any, data: Any) -> tuple[float, list[list[int]]]:
    """One rank's part of an update: verl cuts its chunk into microbatches, and its engine steps. @returns the rank's
    part of the loss, and cells"""
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine.utils import prepare_micro_batches

    number = int(tu.get(data, "step"))
    batch = batch_of(number)
    mine = tu.chunk_tensordict(data, dist.get_world_size())[dist.get_rank()]
    tu.assign_non_tensor(mine, use_dynamic_bsz=True, max_token_len_per_gpu=CAP, sp_size=1)
    engine, cells, total = worker.actor.engine, [], 0.0
    tokens = sum(batch.lengths()) - batch.samples
    with engine.train_mode():
        engine.optimizer_zero_grad()
        micro_batches, _ = prepare_micro_batches(mine, dp_group=dist.group.WORLD, same_micro_num_in_dp=True)
        for micro_batch in micro_batches:
            cells.append(micro_batch["sample"].tolist())
            with replayed(batch, cells[-1]):
                logs = made.log_probs([torch.tensor(batch.tokens()[i]) for i in cells[-1]])
                loss = -torch.cat(logs).sum() / tokens
                loss.backward()
            total += float(loss.detach())
        made.model.chunk.finish_grad_sync()
        engine.optimizer_step()
    return total, cells


def driven(here: pathlib.Path, hf_config: Any, mode: str) -> dict[str, Any]:
    """Three steps of verl's own trainer, which plans and moves: of each loss and cells; what it says at the end."""
    if mode:
        verl.install(Settings(cost=COST, mode=mode, experts=EXACT.experts, **PATIENT))
        verl_worker.install()
    try:
        with actor(here, hf_config, EXACT) as (made, worker):
            group = Group(made, worker)
            if dist.get_rank():
                group.serve()
                return {}
            try:
                return drive(group, mode)
            finally:
                dist.broadcast_object_list([("stop", ())], src=0)
    finally:
        verl.uninstall()


def drive(group: Any, mode: str) -> dict[str, Any]:
    from routepack.transfer import megatron as moving

    from . import test_verl

    trainer = test_verl.trainer_of(group, ppo_mini_batch_size=MINI // 4, ppo_max_token_len_per_gpu=CAP)
    trainer.config.trainer.resume_mode = "disable"
    trainer._load_checkpoint()
    steps, told = [], []
    facts = moving.MegatronState.facts
    for number in range(3):
        if number == 1:  # one rank's data plane refuses
            moving.MegatronState.facts = _no_facts  # type: ignore[method-assign]
        batch = test_verl.batch_of(batch_of(number))
        metrics: dict[str, Any] = {}
        batch.meta_info["step"] = number
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer._balance_batch(batch, metrics)
        moving.MegatronState.facts = facts  # type: ignore[method-assign]
        told.append([str(one.message) for one in caught if "experts were not moved" in str(one.message)])
        trainer._update_actor(batch)
        where = group.routepack_placement(False) if mode else [(None, 0, "")]
        steps.append(
            {
                "loss": group.losses[-1],
                "cells": group.cells,
                "where": [(None if at is None else at.physical_to_logical.tolist(), epoch) for at, epoch, _ in where],
                "metrics": metrics,
            }
        )
    session = verl.session_of(trainer).epoch if mode else 0
    return {"steps": steps, "warnings": told, "epoch": session}


def _no_facts(self: Any) -> Any:
    raise InvalidInput("no bytes today")
