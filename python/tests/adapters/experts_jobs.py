# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job with moving experts do: Megatron-Core's layers, buffers and optimizer train a small language
model on packed cells with replayed routes, EP 2 × EDP 2, while the adapter plans and moves."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import pathlib
import queue
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from transfer.logical import Mismatch
from transfer.megatron_model import HIDDEN, Layers, Model, Variant, gather
from transfer.megatron_on_cpu import HostForGpu, patch_communication, patch_for_cpu
from transfer.megatron_training import megatron as on_megatron

from routepack import InvalidInput, Placement
from routepack.adapters import Settings, megatron
from routepack.transfer.checkpoint import placement_path

from . import megatron_like
from .batches import PATIENT, Batch

COST = 'expert = 100.0\n\n[[stage]]\nname = "full"\nalpha = 1.0\nbeta = 1.0\n'
RANKS, CAP = 4, 128
VARIANT = Variant(exact=True)
HALF = Variant()  # bf16 weights with fp32 masters
#: smooth where gradients are tiny, so that the order of sums does not decide the sign of a step
SMOOTH = {"adam_eps": 1e-3}


@dataclasses.dataclass(frozen=True)
class Leaning(Batch):
    """Half of the experts of each layer are asked for most of the time, other ones in every step."""

    samples: int = 24

    def routes(self) -> list[npt.NDArray[np.int32]]:
        draw = np.random.default_rng(self.seed + 9)
        hot = [draw.permutation(self.experts)[: self.experts // 2] for _ in range(self.layers)]
        made = []
        for length in self.lengths():
            scores = draw.gumbel(size=(length - 1, self.layers, self.experts))
            for layer in range(self.layers):
                scores[:, layer, hot[layer]] += 2.5
            ids = np.argsort(-scores, axis=-1)[..., : self.top_k].astype(np.int32)
            ids[:, 0] = 0
            made.append(np.ascontiguousarray(ids))
        return made


def batch_of(step: int) -> Batch:
    return Leaning(seed=100 * step + 1)


class Language(Layers):
    """A language model whose layers are Megatron's mixtures of experts."""

    def __init__(self, config: Any, layers: int, grouped: bool) -> None:
        super().__init__(config, layers, grouped)
        chance = torch.Generator().manual_seed(5)
        drawn = torch.randn(Batch().vocabulary, HIDDEN, generator=chance) * 0.5
        self.embedding = torch.nn.Parameter(drawn.to(config.params_dtype))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = super().forward(self.embedding[ids][:, None])
        return x[:, 0] @ self.embedding.T

    def sharded_state_dict(self, metadata: Any) -> dict[str, Any]:
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        made = make_sharded_tensors_for_checkpoint({"embedding": self.embedding}, "")
        for number, layer in enumerate(self.layers):
            made.update(layer.sharded_state_dict(f"layers.{number}.", (), metadata))
        return made  # type: ignore[no-any-return]


def settings_of(mode: str) -> Settings:
    return Settings(cost=COST, mode=mode, **PATIENT)


class Job:
    """One rank of a trainer."""

    def __init__(self, variant: Variant, mode: str, module: Any = megatron_like, body: Any = Language) -> None:
        self.module = module
        self.groups = groups()
        self.config = configuration(variant)
        self.model = Model(variant, body=body, **SMOOTH)
        self.model.load(3)
        self.experts: Any = None
        if mode:
            megatron.install(settings_of(mode), self.config, module=module)
            if mode != "packing":
                self.experts = megatron.attach([self.model.chunk], self.model.optimizer)

    def step(self, number: int) -> dict[str, Any]:
        """One optimizer step, as Megatron's loop does it. @returns cells, and the mean loss of all tokens"""
        batch = batch_of(number)
        each = batch.samples // RANKS
        mine = list(range(dist.get_rank() * each, (dist.get_rank() + 1) * each))
        self.model.zero_grad()
        if megatron.installed():
            routes = batch.routes()
            megatron.provide([routes[i] for i in mine], layers=list(range(1, batch.layers)))
        samples = []
        for i in mine:
            length = torch.tensor([len(batch.tokens()[i])], dtype=torch.int32)
            samples.append(
                {
                    "tokens": torch.tensor(batch.tokens()[i]),
                    "labels": torch.tensor(batch.tokens()[i]),
                    "loss_mask": torch.ones(int(length)),
                    "position_ids": torch.arange(int(length)),
                    "original_seq_len": length,
                    "padded_seq_len": length.clone(),
                }
            )
        iterator, rows, tokens, _ = self.module.wrap_data_iterator(
            iter([[some] for some in samples]), self.config, len(samples), self.groups
        )
        cells, total = [], torch.zeros(1)
        for _ in range(rows):
            packed = next(iterator)
            ends = packed["cu_seqlens_padded"].tolist()
            texts = [packed["tokens"][begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
            cells.append([batch.tokens().index(text.tolist()) for text in texts])
            with replayed(batch, cells[-1]):
                logs = self.log_probs(texts)
                loss = -torch.cat(logs).sum() / (tokens - batch.samples)
                loss.backward()
            total += loss.detach()
        self.model.chunk.finish_grad_sync()
        success, _, _ = self.model.optimizer.step()
        assert success
        dist.all_reduce(total)
        return {"cells": cells, "loss": float(total)}

    def log_probs(self, texts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Of each next token; the cell is padded, as all ranks that share experts need the same number of tokens."""
        ids = torch.cat([text[:-1] for text in texts])
        logits = self.model.chunk(F.pad(ids, (0, CAP - len(ids)))).float()
        logs = F.log_softmax(logits[: len(ids)], dim=-1)
        targets = torch.cat([text[1:] for text in texts])
        return list(logs.gather(1, targets[:, None]).squeeze(1).split([len(text) - 1 for text in texts]))

    def probe(self) -> torch.Tensor:
        """Log-probabilities of a fixed text, routed live."""
        with torch.no_grad():
            text = torch.tensor(batch_of(77).tokens()[dist.get_rank()])
            return self.log_probs([text])[0].clone()

    def state(self) -> dict[str, torch.Tensor]:
        """Everything, by expert."""
        home = Placement.identity(self.model.variant.layers, self.model.variant.experts, self.model.variant.ep)
        found = gather(self.model, home if self.experts is None else self.experts.placement)
        module = self.model.chunk.module
        for number, layer in enumerate(module.layers):
            found[f"router{number}"] = layer.router.weight.data.clone()
        found["embedding"] = module.embedding.data.clone()
        return found

    def sharded(self, kind: str, loading: bool = False) -> dict[str, Any]:
        """A state dict of Megatron's distributed checkpoints."""
        if loading:
            self._make_moments()
        metadata = {"distrib_optim_sharding_type": kind, "dp_cp_group": self.groups.dp_cp, **SINGLE.get(kind, {})}
        model = self.model.chunk.module.sharded_state_dict(metadata)
        optimizer = self.model.optimizer.sharded_state_dict(model, is_loading=loading, metadata=metadata)
        return {"model": model, "optimizer": optimizer}

    def _make_moments(self) -> None:
        """torch's Adam has none before its first step, and Megatron wants to know how many there were."""
        for one in self.model.optimizer.chained_optimizers:
            for group in one.optimizer.param_groups:
                for held in group["params"]:
                    moments = {word: torch.zeros_like(held) for word in ("exp_avg", "exp_avg_sq")}
                    one.optimizer.state[held] = {"step": torch.zeros(()), **moments}


SINGLE: dict[str, dict[str, Any]] = {"fully_reshardable": {"distrib_optim_fully_reshardable_mem_efficient": False}}


@contextlib.contextmanager
def job(variant: Variant, mode: str, module: Any = megatron_like, body: Any = Language) -> Iterator[Job]:
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.transformer.moe.router_replay import RouterReplay

    warnings.simplefilter("ignore")
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.synchronize = lambda *_: None
    _keep_steps(DistributedOptimizer)
    RouterReplay.global_router_replay_instances.clear()
    # Megatron writes from child processes, and would keep one more to collect what they say.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    filesystem_async._results_queue = queue.Queue()
    with on_megatron(variant):
        made = Job(variant, mode, module, body)
        try:
            yield made
        finally:
            megatron.uninstall()


def _keep_steps(optimizer: Any) -> None:
    """Of torch's Adam, which has one per parameter: Megatron loads those of its groups, and then misses these."""
    original = optimizer._set_main_param_and_optimizer_states

    def set_states(self: Any, parameter: Any, tensors: dict[str, Any]) -> Any:
        held = self._get_main_param_and_optimizer_states(parameter)
        return original(self, parameter, {**tensors, "step": held["step"]})

    optimizer._set_main_param_and_optimizer_states = set_states


def groups() -> Any:
    import types

    from megatron.core import parallel_state as state

    return types.SimpleNamespace(
        tp=state.get_tensor_model_parallel_group(),
        dp=state.get_data_parallel_group(),
        dp_cp=state.get_data_parallel_group(with_context_parallel=True),
        cp=state.get_context_parallel_group(),
        pp=state.get_pipeline_model_parallel_group(),
    )


def configuration(variant: Variant) -> Any:
    import types

    return types.SimpleNamespace(
        max_seqlen_per_dp_cp_rank=CAP,
        expert_model_parallel_size=variant.ep,
        expert_tensor_parallel_size=1,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        virtual_pipeline_model_parallel_size=None,
        microbatch_group_size_per_vp_stage=None,
        num_moe_experts=variant.experts,
        moe_router_topk=2,
        sequence_packing_scheduler="dp_balanced",
    )


@contextlib.contextmanager
def replayed(batch: Batch, cell: list[int]) -> Iterator[None]:
    """Routes of the rollout; what pads a cell is spread over all experts."""
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    routes = batch.routes()
    ids = torch.cat([torch.from_numpy(routes[i][:, 1:]).long() for i in cell])
    some = torch.arange(CAP - len(ids))
    pads = torch.stack([some % batch.experts, (some + 1) % batch.experts], dim=1)[:, None].expand(-1, ids.shape[1], -1)
    whole = torch.cat([ids, pads])
    RouterReplay.set_replay_data([whole[:, layer].contiguous() for layer in range(whole.shape[1])])
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    yield
    RouterReplay.clear_global_indices()
    RouterReplay.clear_global_router_replay_action()


def train(rank: int, variant: Variant, mode: str, steps: int, checkout: bool) -> dict[str, Any]:
    """@returns losses and cells per step, the state at the end, epochs and metrics"""
    module: Any = megatron_like
    if checkout:
        from .test_megatron import checkout as load

        module = load()
    with job(variant, mode, module) as made:
        done = [made.step(number) for number in range(steps)]
        session = megatron.session()
        return {
            "steps": done,
            "state": {name: value.float().numpy() for name, value in made.state().items()},
            "epoch": None if made.experts is None else made.experts.epoch,
            "maps": None if made.experts is None else made.experts.placement.physical_to_logical.copy(),
            "metrics": None if session is None else dict(session.metrics),
            "exported": exported(made),
        }


def copies(rank: int, sabotage: str) -> dict[str, Any]:
    """A reference model under the placement of epoch 0 gives the same log-probabilities at every later one."""
    from routepack.adapters.experts import NotReady, WeightCopies, WorkerExperts

    if sabotage:
        WorkerExperts.show = lambda self, placement: setattr(self, "_shown", placement)  # type: ignore[method-assign]
    with job(VARIANT, "both") as made:
        kept = WeightCopies(made.experts)
        made.step(0)
        kept.keep("ref")
        wanted, under = made.probe(), made.experts.placement
        for number in (1, 2):
            made.step(number)
            if made.experts.placement == under:
                raise Mismatch("nothing moved")
            kept.keep("actor")
            actor = made.probe()
            kept.restore("ref")
            if not torch.equal(made.probe(), wanted):
                raise Mismatch(f"step {number}: the reference gives other log-probabilities")
            for action in (made.model.optimizer.step, lambda: made.experts.move(under, 99)):
                try:
                    action()
                except NotReady:
                    continue
                raise Mismatch("trained or moved with the reference in the slots")
            kept.restore("actor")
            if not torch.equal(made.probe(), actor) or torch.equal(actor, wanted):
                raise Mismatch(f"step {number}: the actor is not back")
        return {"tags": kept.tags, "loss": made.step(3)["loss"]}


def save(rank: int, folder: str, variant: Variant, kind: str, stop: int, steps: int) -> dict[str, Any]:
    """Trains, with a checkpoint on the way."""
    from megatron.core import dist_checkpointing

    with job(variant, "both") as made:
        for number in range(stop):
            made.step(number)
        pathlib.Path(folder).mkdir(exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(made.sharded(kind), folder)
        maps, epoch = made.experts.placement.physical_to_logical.copy(), made.experts.epoch
        done = [made.step(number) for number in range(stop, steps)]
        state = {name: value.float().numpy() for name, value in made.state().items()}
        return {"steps": done, "state": state, "maps": maps, "epoch": epoch}


def resume(rank: int, folder: str, variant: Variant, kind: str, stop: int, steps: int, restore: bool) -> dict[str, Any]:
    """Fresh processes go on from the checkpoint."""
    from megatron.core import dist_checkpointing

    with job(variant, "both") as made:
        if restore:
            made.experts.restore(folder)
        maps, epoch = made.experts.placement.physical_to_logical.copy(), made.experts.epoch
        loaded = dist_checkpointing.load(made.sharded(kind, loading=True), folder)
        made.model.chunk.module.load_state_dict(loaded["model"], strict=False)
        with torch.no_grad():
            made.model.optimizer.load_state_dict(loaded["optimizer"])
        for one in made.model.optimizer.chained_optimizers:  # Megatron gives all of torch's Adam one tensor to count in
            for state in one.optimizer.state.values():
                state["step"] = state["step"].clone()
        if "routepack_placement" in loaded:
            raise Mismatch("the stamp came out")
        done = [made.step(number) for number in range(stop, steps)]
        state = {name: value.float().numpy() for name, value in made.state().items()}
        return {"steps": done, "state": state, "maps": maps, "epoch": epoch}


def refused(rank: int, folder: str, kind: str) -> list[str]:
    """What a load says that did not ask for the placement, one whose checkpoint has lost it, and one whose folder has
    the placement of an earlier save."""
    from megatron.core import parallel_state

    path, said = placement_path(folder), []
    text = path.read_text()
    for case in ("blind", "lost", "left over"):
        dist.barrier()
        if case == "lost" and rank == 0:
            path.unlink()
        elif case == "left over" and rank == 0:
            _without_stamp(pathlib.Path(folder))
            path.write_text(text)
        dist.barrier()
        try:
            resume(rank, folder, VARIANT, kind, 1, 1, case != "blind")
        except InvalidInput as refusal:
            said.append(str(refusal))
            parallel_state.destroy_model_parallel()
    return said


def _without_stamp(folder: pathlib.Path) -> None:
    """As a save without RoutePack into the same folder leaves it."""
    common = torch.load(folder / "common.pt", weights_only=False)
    del common["routepack_placement"]
    torch.save(common, folder / "common.pt")


def exported(made: Job) -> dict[str, Any]:
    """All parameters under the names of an exporter, from all ranks."""
    n, ep_rank = VARIANT.slots, dist.get_rank() % VARIANT.ep
    mine = {}
    for name, parameter in made.model.chunk.module.named_parameters():
        if made.experts is not None:
            name = made.experts.names.to_logical(name, ep_rank=ep_rank)
        elif ".local_experts." in name:
            head, _, tail = name.partition(".local_experts.")
            slot, _, rest = tail.partition(".")
            name = f"{head}.local_experts.{ep_rank * n + int(slot)}.{rest}"
        mine[name] = parameter.detach().numpy().copy()
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, mine)
    whole: dict[str, Any] = {}
    for some in everything:
        for name, value in some.items():
            if name in whole and not np.array_equal(whole[name], value):
                raise Mismatch(f"{name} differs between ranks")
            whole[name] = value
    return whole


def moves(rank: int) -> list[str]:
    """Epochs, shapes, and an adapter that nobody attached to. @returns what was said"""
    said = []
    with job(VARIANT, "both") as made:
        home = made.experts.placement
        swapped = home.physical_to_logical[:, ::-1].copy()
        away = Placement.from_maps(ranks=home.ranks, physical_to_logical=swapped)
        assert made.experts.move(away, 3) and not made.experts.move(away, 3)
        taller = Placement.identity(layers=home.layers + 1, experts=home.experts, ranks=home.ranks)
        for placement, epoch in ((home, 3), (away, 2), (home, 1), (taller, 9)):
            try:
                made.experts.move(placement, epoch)
            except InvalidInput as refusal:
                said.append(str(refusal))
        assert made.experts.placement == away and made.experts.epoch == 3
        made.experts.to_identity()
        assert made.experts.placement == home and made.experts.epoch == 4
        made.experts.detach()
    with job(VARIANT, "") as made:
        megatron.install(settings_of("both"), made.config, module=megatron_like)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made.step(0)
        said += [str(one.message) for one in told if "wanted megatron.attach" in str(one.message)]
    return said


def torn(rank: int) -> str:
    """A rank that cannot write what it has received. @returns what it says, and every other one"""
    from routepack.transfer.megatron import MoveFailed
    from routepack.transfer.torch_mover import TorchMover

    with job(VARIANT, "both") as made:
        home = made.experts.placement
        swapped = home.physical_to_logical[:, ::-1].copy()
        commit = TorchMover.commit

        def commit_or_not(self: Any, layer: int, copy: int, read_back: bool) -> None:
            if layer == 1:
                raise RuntimeError("the device is gone")
            commit(self, layer, copy, read_back)

        if rank == 3:
            TorchMover.commit = commit_or_not  # type: ignore[method-assign]
        try:
            made.experts.try_move(Placement.from_maps(ranks=home.ranks, physical_to_logical=swapped), 1)
        except MoveFailed as failure:
            return str(failure)
        finally:
            TorchMover.commit = commit  # type: ignore[method-assign]
        return "goes on"


def stage_that_cannot(rank: int) -> dict[str, Any]:
    """A move that the data plane refuses leaves a step that trains on its layout, on all ranks alike."""
    from routepack.transfer import megatron as moving

    with job(VARIANT, "both") as made:
        made.step(0)
        before = made.experts.placement
        move = moving.MegatronState.facts

        def facts(self: Any) -> Any:
            if dist.get_rank() == 1:
                raise InvalidInput("no bytes today")
            return move(self)

        moving.MegatronState.facts = facts  # type: ignore[method-assign]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            done = made.step(1)
        moving.MegatronState.facts = move  # type: ignore[method-assign]
        session = megatron.session()
        metrics = None if session is None else dict(session.metrics)
        stayed = made.experts.placement == before
        made.step(2)
        return {
            "stayed": stayed,
            "moved": made.experts.placement != before,
            "cells": done["cells"],
            "metrics": metrics,
            "warnings": [str(one.message) for one in told if "experts were not moved" in str(one.message)],
        }


def stages(rank: int) -> dict[str, Any]:
    """PP 2 × EP 2: each stage moves its own layers, also when the other one cannot, and all know what holds."""
    from megatron.core import parallel_state

    from routepack.adapters import experts as placed
    from routepack.transfer import megatron as moving

    warnings.simplefilter("ignore")
    patch_for_cpu()
    patch_communication()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=2, expert_model_parallel_size=2, create_gloo_process_groups=False
    )
    with HostForGpu():
        stage, ep_rank = parallel_state.get_pipeline_model_parallel_rank(), dist.get_rank() % 2
        model = Model(VARIANT)
        model.load(10 + stage)
        for layer in model.chunk.module.layers:
            layer.layer_number += stage * VARIANT.layers
        made = placed.attach([model.chunk], model.optimizer)
        home = made.placement

        def held() -> dict[tuple[int, int], torch.Tensor]:
            """(layer, expert) → one of its weights, of this rank."""
            n, found = VARIANT.slots, {}
            for number, slots in enumerate(model.experts):
                row = stage * VARIANT.layers + number
                for slot, parameters in enumerate(slots):
                    e = int(made.placement.physical_to_logical[row, ep_rank * n + slot])
                    found[row, e] = parameters["linear_fc1.weight"].data.clone()
            return found

        everything: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everything, held())
        wanted = {key: value for some in everything for key, value in some.items()}
        chance, said = np.random.default_rng(4), []
        facts = moving.MegatronState.facts
        for epoch in (1, 2, 3):
            maps = np.stack([chance.permutation(VARIANT.experts) for _ in made.layer_numbers]).astype(np.int32)
            to = Placement.from_maps(ranks=2, physical_to_logical=maps)
            before = made.placement.physical_to_logical.copy()
            if epoch == 2 and stage == 1 and ep_rank == 0:
                moving.MegatronState.facts = _no_facts  # type: ignore[method-assign]
            said.append(made.try_move(to, epoch))
            moving.MegatronState.facts = facts  # type: ignore[method-assign]
            truth = maps.copy()
            if epoch == 2:
                truth[VARIANT.layers :] = before[VARIANT.layers :]
            if not np.array_equal(made.placement.physical_to_logical, truth) or made.epoch != epoch:
                raise Mismatch(f"epoch {epoch}: found {made.placement.physical_to_logical.tolist()}")
            for key, value in held().items():
                if not torch.equal(value, wanted[key]):
                    raise Mismatch(f"epoch {epoch}: layer and expert {key} are not where the placement says")
        made.to_identity()
        if made.placement != home:
            raise Mismatch("not back")
        return {"numbers": made.layer_numbers, "said": said}


def _no_facts(self: Any) -> Any:
    raise InvalidInput("no bytes today")
