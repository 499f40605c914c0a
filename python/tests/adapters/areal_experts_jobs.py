# SPDX-License-Identifier: Apache-2.0
"""What the ranks of an AReaL job do: AReaL's own RPC server on each with its Megatron engine behind, EP 2 × EDP 2 over
gloo; its own controller on the first, which trains while experts move."""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import queue
import threading
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from transfer.logical import Mismatch
from transfer.megatron_training import megatron as on_megatron

from routepack.adapters import Settings, _mbridge, areal

from .batches import PATIENT, Batch
from .experts_jobs import COST, Leaning, _keep_steps

RANKS, STEPS = 4, 3


def batch_of(step: int) -> Batch:
    return Leaning(samples=32, seed=100 * step + 1)


def trajectories(batch: Batch, concat: Any, routed: bool = True, counted: bool = True) -> list[dict[str, Any]]:
    """One per prompt, of `batch.group` answers, as a workflow's results are put together by `concat_padded_tensors`."""
    items = []
    answers, masks, routes, rewards = batch.response_lengths(), batch.loss_masks(), batch.routes(), batch.rewards()
    for begin in range(0, batch.samples, batch.group):
        results = []
        for i in range(begin, begin + batch.group):
            tokens = torch.tensor([batch.tokens()[i]])
            size = tokens.shape[1]
            trained = torch.zeros(1, size)
            trained[0, size - 1 - answers[i] : size - 1] = torch.tensor(masks[i], dtype=torch.float32)
            result = {
                "input_ids": tokens,
                "attention_mask": torch.ones(1, size, dtype=torch.bool),
                "loss_mask": trained,
                "logprobs": torch.full((1, size), -3.0),
                "prox_logp": torch.full((1, size), -3.0),
                "advantages": torch.full((1, size), rewards[i]),
                "kl_rewards": torch.zeros(1, size),
                "tot_rewards": torch.zeros(1, size),
                "rewards": torch.tensor([rewards[i]]),
                "sample": torch.full((1, size), i),
            }
            response = types.SimpleNamespace(
                input_tokens=[0] * (size - answers[i]),
                output_tokens=[0] * answers[i],
                routed_experts=routes[i][:, 1:].reshape(size - 1, -1) if routed else None,
            )
            if counted:
                result.update(areal.counts_of(response, layers=batch.layers - 1, experts=batch.experts))
            results.append(result)
        items.append(concat(results))
    return items


@contextlib.contextmanager
def served(rank: int, folder: str) -> Iterator[Any]:
    """AReaL's servers run on all ranks. Gives a scheduler of them on the first rank; the others wait for its end."""
    from werkzeug.serving import make_server

    from . import areal_engine as made
    from .areal_engine import GROUPED

    warnings.simplefilter("ignore")
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.cuda.synchronize = lambda *_: None
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from transfer.megatron_on_cpu import HostForGpu

    _keep_steps(DistributedOptimizer)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    filesystem_async._results_queue = queue.Queue()
    made.checkpointer.tensor_parallel = types.SimpleNamespace(  # of a GPU's random numbers there are none
        get_cuda_rng_tracker=lambda: types.SimpleNamespace(
            get_states=lambda: {"cpu": torch.zeros(1)}, set_states=lambda _: None
        )
    )
    if not made.MBRIDGE:
        _mbridge.install = lambda **_: None  # type: ignore[method-assign]
    with on_megatron(GROUPED):
        areal.install_worker()
        state = made.guard.GuardState()
        state.role, state.server_host = "actor", "127.0.0.1"
        app = made.guard.create_app(state)
        app.register_blueprint(made.data_blueprint.data_bp)
        app.register_blueprint(made.blueprint.engine_bp)
        server = make_server("127.0.0.1", 0, app, threaded=True)
        state.server_port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mode = HostForGpu()  # engines live in a thread of AReaL's
        made.blueprint._submit_to_engine_thread("enter", mode.__enter__)
        ports: list[Any] = [None] * RANKS
        dist.all_gather_object(ports, server.server_port)
        done = pathlib.Path(folder, "done")
        if rank == 0:
            yield made.Scheduler(ports)
            done.touch()
        else:
            while not done.is_file():
                time.sleep(0.02)
            yield None
        server.shutdown()


class Trainer:
    """What AReaL's trainer does with its controllers, on the first rank."""

    def __init__(self, scheduler: Any, role: str, mode: str = "", **more: Any) -> None:
        from . import areal_engine as made

        self.made, self.role, self.mode = made, role, mode
        if mode:
            areal.install(Settings(cost=COST, mode=mode, **PATIENT))
            areal.install_worker()  # this rank is a worker, too
        self.actor = self._controller(scheduler, role, **more)

    def _controller(self, scheduler: Any, role: str, **more: Any) -> Any:
        made = self.made
        controller = made.actors.PPOActorController(made.Engine, made.actor_configuration(**more), scheduler)
        controller.initialize(role=role, ft_spec=made.structures.FinetuneSpec(1, 100, 1), addr=None)
        controller.rollout = made.Rollout()
        return controller

    def with_reference(self, scheduler: Any) -> Any:
        """A controller of a reference model, in the same workers."""
        return self._controller(scheduler, f"ref-{self.role}", optimizer=None)

    def everywhere(self, method: str, *args: Any) -> Any:
        return self.actor._custom_function_call(method, *args)

    def maps(self) -> list[list[int]]:
        """Where experts are, as all ranks have it."""
        count = self.actor.parallel_strategy.dp_size
        said = self.made.controllers.run_async_task(self.actor._call_workers, "maps", [], {})
        if said != [said[0]] * count:
            raise Mismatch("ranks say different placements")
        return said[0]  # type: ignore[no-any-return]

    def items(self, number: int) -> list[dict[str, Any]]:
        return trajectories(batch_of(number), self.made.data.concat_padded_tensors, counted=bool(self.mode))

    def logs(self, number: int, controller: Any = None) -> list[torch.Tensor]:
        items = self.items(number)
        return self._of_samples(items, (controller or self.actor).compute_logp(items))

    def step(self, number: int) -> list[torch.Tensor]:
        """Log-probs, then the update. @returns the log-probs of each sample's tokens but the last, whose successor is
        whatever stands next in the microbatch"""
        items = self.items(number)
        logs = self.actor.compute_logp(items)
        for item, some in zip(items, logs, strict=True):
            item["prox_logp"] = areal._here(some)
        self.actor.ppo_update(items)
        return self._of_samples(items, logs)

    @staticmethod
    def _of_samples(items: Any, logs: Any) -> list[torch.Tensor]:
        made = []
        for item, some in zip(items, logs, strict=True):
            lengths = item["attention_mask"].sum(1).tolist()
            made += [row[: n - 1] for row, n in zip(areal._here(some), lengths, strict=True)]
        return made

    def sync(self) -> dict[str, torch.Tensor]:
        """What a rollout engine gets."""
        engine = self.made.blueprint._engines[f"{self.role}/0"]
        engine.sent = {}
        self.actor.update_weights(self.made.structures.WeightUpdateMeta(type="xccl", weight_chunked_mem_mb=0))
        return engine.sent  # type: ignore[no-any-return]

    def export(self, folder: pathlib.Path) -> dict[str, torch.Tensor]:
        """What lies in a folder after AReaL's export to Hugging Face."""
        import safetensors.torch

        self.actor.save(self.meta(folder, "hf"))
        found: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            found.update(safetensors.torch.load_file(file))
        return found

    def meta(self, folder: pathlib.Path, kind: str) -> Any:
        folder.mkdir(exist_ok=True, parents=True)
        return self.made.structures.SaveLoadMeta(str(folder), kind, kind == "dcp")


def same(found: Any, wanted: Any, where: str, within: float = 0.0) -> int:
    """@returns how many tensors were compared"""
    if isinstance(wanted, list):
        found, wanted = (dict(enumerate(some)) for some in (found, wanted))
    if found.keys() != wanted.keys():
        raise Mismatch(f"{where}: names differ: {sorted(found.keys() ^ wanted.keys())[:4]}")
    for name, tensor in wanted.items():
        if (found[name] - tensor).abs().max() > within * tensor.abs().max():
            raise Mismatch(f"{where}: {name} differs by {float((found[name] - tensor).abs().max())}")
    return len(wanted)


def train(rank: int, folder: str) -> dict[str, Any]:
    """Actors that stay, and actors that move: the same weights reach the rollout engine after every step, and the same
    export; a reference model gives its log-probs. With a checkpoint on the way."""
    with served(rank, folder) as scheduler:
        return {} if rank else _trained(scheduler, pathlib.Path(folder))


def _trained(scheduler: Any, root: pathlib.Path) -> dict[str, Any]:
    stays = Trainer(scheduler, "stays")
    exports = [root / f"stays-{number}" for number in range(STEPS)] if stays.made.MBRIDGE else []
    reference, wanted, logs, exported = [], [stays.sync()], [], []
    for number in range(STEPS):
        reference.append(stays.logs(number))
    for number in range(STEPS):
        logs.append(stays.step(number))
        wanted.append(stays.sync())
        exported += [stays.export(folder) for folder in exports[number : number + 1]]
    moves = Trainer(scheduler, "moves", "placement")
    ref = moves.with_reference(scheduler)
    compared = same(moves.sync(), wanted[0], "at the start")
    placements = [moves.maps()]
    for number in range(STEPS):
        same(moves.logs(number, ref), reference[number], f"step {number}: reference")
        if moves.maps() != placements[-1]:
            raise Mismatch("experts moved before the first pass of their own model")
        same(moves.step(number), logs[number], f"step {number}: log-probs")
        placements.append(moves.maps())
        session: Any = areal.session()
        if placements[-1] != session.last_plans[0].physical_to_logical.tolist() or session.epoch != number + 1:
            raise Mismatch(f"step {number}: experts are not where the plan has them")
        if session.metrics["routepack/fallback"] or not session.metrics["routepack/ms_moves"]:
            raise Mismatch(f"step {number}: {session.metrics}")
        compared += same(moves.sync(), wanted[number + 1], f"step {number}: weight sync")
        for some in exported[number : number + 1]:
            compared += same(moves.export(root / f"moves-{number}"), some, f"step {number}: export")
        if number == STEPS - 2:
            moves.actor.save(moves.meta(root / "checkpoint", "dcp"))
            kept = {"placement": placements[-1], "epoch": session.epoch}
    torch.save({**kept, "logs": logs[-1], "sent": wanted[-1]}, root / "wanted.pt")
    missed = _without_hooks(moves, root, wanted[-1], exported)
    stacked = 0
    if exports:
        stacks = _with_stacks(stays, lambda: stays.export(root / "stays-stacks"))
        found = _with_stacks(moves, lambda: moves.export(root / "moves-stacks"))
        stacked = same(found, stacks, "export of stacks")
        moves.actor.load(moves.meta(exports[0], "hf"))
        if moves.maps() != placements[-1]:
            raise Mismatch("weights of Hugging Face moved experts")
        compared += same(moves.sync(), wanted[1], "weights of Hugging Face")
        _with_stacks(moves, lambda: moves.actor.load(moves.meta(root / "stays-stacks", "hf")))
        if moves.maps() != placements[0]:
            raise Mismatch("experts are not at home for weights that come by slot")
        stacked += same(moves.sync(), wanted[-1], "weights from stacks")
    packed = Trainer(scheduler, "packed", "both")
    for number in range(STEPS):
        same(packed.step(number), logs[number], f"step {number}: log-probs on the plan's layout", 1e-5)
        compared += same(packed.sync(), wanted[number + 1], f"step {number}: weight sync on the plan's layout", 2e-6)
    session = areal.session()
    asked = _asked(packed)
    areal.uninstall()  # this rank's half, too: one of four workers has no hook now
    refused = _asked(packed)
    return {
        "asked": asked, "refused": refused,
        "missed": missed, "stacked": stacked, "compared": compared, "placements": placements, "exports": len(exported),
        "metrics": dict(session.metrics), "packed": packed.maps(), "reference": ref._custom_function_call("maps"),
    }  # fmt: skip


def _asked(trainer: Trainer) -> str:
    """What workers lack to train parts of trajectories, as their servers answer. Nobody waits for anybody."""
    trainer.made.controllers.run_async_task(trainer.actor._call_workers, "maps", [], {})
    areal._ASKED.clear()
    lack = areal._lack(trainer.actor, trainer.made.controllers)
    trainer.made.controllers.run_async_task(trainer.actor._call_workers, "maps", [], {})
    return lack


def _with_stacks(trainer: Trainer, action: Any) -> Any:
    trainer.everywhere("use_stacks", True)
    made = action()
    trainer.everywhere("use_stacks", False)
    return made


def _without_hooks(moves: Trainer, root: pathlib.Path, wanted: Any, exported: list[Any]) -> list[str]:
    """What is found to be wrong when this rank names its slots."""
    from routepack.adapters import areal_experts

    missed = []
    areal_experts.uninstall()
    for name, action in (
        ("weight sync", lambda: same(moves.sync(), wanted, "")),
        ("export", lambda: [same(moves.export(root / "without"), some, "") for some in exported[-1:]]),
    ):
        try:
            action()
        except Exception:  # of this rank, or of AReaL on another
            missed.append(name)
    areal_experts.install()
    return missed


def resume(rank: int, folder: str) -> dict[str, Any]:
    """Fresh processes go on from the checkpoint, with the placement it has. Then moves that fail."""
    with served(rank, folder) as scheduler:
        return {} if rank else _resumed(scheduler, pathlib.Path(folder))


def _resumed(scheduler: Any, root: pathlib.Path) -> dict[str, Any]:
    kept = torch.load(root / "wanted.pt")
    again = Trainer(scheduler, "again", "placement")
    home = again.maps()
    again.everywhere("make_moments")
    again.actor.load(again.meta(root / "checkpoint", "dcp"))
    again.everywhere("part_steps")
    if again.maps() != kept["placement"] or again.maps() == home:
        raise Mismatch("the checkpoint's placement is not the workers'")
    same(again.step(STEPS - 1), kept["logs"], "log-probs of the next step")
    same(again.sync(), kept["sent"], "weights of the next step")
    session: Any = areal.session()
    said: dict[str, Any] = {"epoch": session.epoch, "kept": kept["epoch"]}

    before = again.maps()
    again.everywhere("spoil", "refused")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again.step(STEPS)
    said["warnings"] = [str(one.message) for one in told if "experts were not moved" in str(one.message)]
    said["metrics"], said["stayed"] = dict(session.metrics), again.maps() == before
    again.everywhere("spoil", "")
    again.step(STEPS + 1)
    said["moved"], said["followed"] = again.maps() != before, again.maps() == session.current.tolist()

    (root / "checkpoint" / "routepack-placement.json").unlink()
    for name, action in (
        ("missing", lambda: again.actor.load(again.meta(root / "checkpoint", "dcp"))),
        ("torn", lambda: (again.everywhere("spoil", "torn"), again.step(STEPS + 2))),
    ):
        try:
            action()
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    areal.uninstall()
    return said
