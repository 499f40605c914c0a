# SPDX-License-Identifier: Apache-2.0
"""AReaL's controller moves experts: it asks all workers of the model that trains, by its own calls, and they answer.

A plan's placement waits until the first pass of that model over the window; passes of a reference model before it need
none, and the model that trains may be offloaded meanwhile. All workers move in one call, and say where experts are.
Source: areal/infra/controller/train_controller.py, areal/trainer/rl_trainer.py of AReaL 1.0.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from routepack._core import Placement
from routepack._errors import Error, InvalidInput
from routepack.adapters._placements import expect_shape
from routepack.adapters._session import Session
from routepack.adapters.areal_experts import METHOD, message_of, placement_of


class ExpertsLost(Error):
    """Nobody knows which experts moved: the job has to start again from its last checkpoint."""


class Mover:
    """The workers of one controller, as those who hold experts. Made when its engines are initialized."""

    def __init__(self, controller: Any, run: Callable[..., Any]) -> None:
        """Attaches on all workers.

        :param run: AReaL's `run_async_task`
        """
        self.controller = controller
        self._run = run
        self._wanted: tuple[Placement, int] | None = None
        self._key: Hashable = None
        self.placement, self.epoch, _ = self._asked("attach")

    def note(self, placement: Placement, epoch: int) -> None:
        """What a session's plan wants. @raises InvalidInput when workers do not have such experts"""
        expect_shape(placement, self.placement, "; are the layers of areal.counts_of those with experts?")
        self._wanted = (placement, epoch)

    def follow(self, session: Session, key: Hashable) -> None:
        """Before a pass. A new window is planned from where the workers say that experts are."""
        if key == self._key:
            return
        self._key, self._wanted = key, None
        maps, here = self.placement.physical_to_logical, session.current
        if session.epoch != self.epoch or here is None or not np.array_equal(maps, here):
            session.resume(maps, self.epoch)

    def move(self, session: Session) -> None:
        """Before the first pass of the model that trains. A move that failed whole leaves a window that trains on its
        layout, in all its passes, with experts where they were; the next one is planned from there.

        :raises ExpertsLost: when a worker raised, or they disagree
        """
        if self._wanted is None:
            return
        (placement, epoch), self._wanted = self._wanted, None
        begin = time.perf_counter()
        try:
            self.placement, self.epoch, failed = self._asked(
                "move", message_of(placement.physical_to_logical, placement.ranks, epoch)
            )
        except Exception as error:
            raise ExpertsLost(
                f"areal: experts of some workers may have moved and those of others not "
                f"({type(error).__name__}: {error}); start the job again from its last checkpoint"
            ) from error
        session.metrics["routepack/ms_moves"] = 1e3 * (time.perf_counter() - begin)
        if failed:
            session.not_moved(failed)
            session.resume(self.placement.physical_to_logical, self.epoch, keep_plan=True)

    def ask(self) -> None:
        """After a checkpoint was loaded. What was planned before is forgotten."""
        self._key = self._wanted = None
        self.placement, self.epoch, _ = self._asked("where")

    def _asked(self, what: str, message: str = "") -> tuple[Placement, int, str]:
        """What the workers say. All are asked, the first of each data-parallel rank is answered for."""
        count = int(self.controller.parallel_strategy.dp_size)
        arguments = [[what] * count, [message] * count]
        answers = self._run(self.controller._call_workers, METHOD, arguments, {}, rpc_meta={"broadcast": True})
        said = [answer for answer, head in zip(answers, self.controller.workers_is_dp_head, strict=True) if head]
        told = [placement_of(answer) for answer in said]
        placement, epoch, _ = told[0]
        if any(other != placement or number != epoch for other, number, _ in told):
            raise InvalidInput(
                f"areal: found workers that disagree where experts are after {what}, wanted one placement"
            )
        return placement, epoch, next((failed for _, _, failed in told if failed), "")


def refuse(controller: Any, workers_know: bool) -> None:
    """Settings of AReaL under which experts cannot move. @raises InvalidInput naming the setting"""
    config = controller.config
    if not workers_know:
        raise InvalidInput(
            "areal: found scheduling_spec.cmd without the hook, wanted «python -m routepack.adapters.areal» to move "
            "experts in workers; or mode='packing'"
        )
    if getattr(config, "_version", "v1") == "v2":
        raise InvalidInput(
            "areal: found _version v2, whose weight sync (awex) copies from rank to rank without names; wanted v1, or "
            "mode='packing'"
        )
    if not str(config.backend).split(":")[0].startswith("megatron"):
        raise InvalidInput(f"areal: found backend {config.backend}, wanted megatron:… to move experts in")
    for where, name in ((config, "use_lora"), *((config.megatron, n) for n in ("use_torch_fsdp2", "use_custom_fsdp"))):
        if getattr(where, name, False):
            raise InvalidInput(f"areal: found {name}, wanted whole experts in Megatron's own buffers to move them")
    if getattr(config, "weight_update_mode", "xccl") not in ("xccl", "disk"):
        raise InvalidInput(f"areal: found weight_update_mode {config.weight_update_mode}, wanted xccl or disk")


def trains(config: Any) -> bool:
    """Whether a controller's engines are those of the policy that trains: not a reference model's, not a critic's."""
    return bool(
        getattr(config, "ppo_n_minibatches", None)
        and not getattr(config, "is_critic", False)
        and getattr(config, "optimizer", None) is not None
    )


__all__ = ["ExpertsLost", "Mover", "refuse", "trains"]
