# SPDX-License-Identifier: Apache-2.0
"""Where experts are in verl, as its driver knows it: asked of all training ranks, and told to them.

Both are calls of verl's own worker group, which return when every rank is done. All ranks say the same, or the job
ends. What they do is in `verl_worker`.
Source: verl/single_controller/base/decorator.py, verl/trainer/ppo/ray_trainer.py, v1/trainer_base.py of verl 0.9.1.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from routepack._core import Placement
from routepack._errors import Error, InvalidInput
from routepack.adapters._placements import expect_shape
from routepack.adapters._session import Session
from routepack.adapters.verl_worker import ASK, MOVE, Told, refuse_settings

_GROUP = "actor_rollout_wg"
#: of each trainer: where its workers said that experts are, and where the plan at hand wants them
_TOLD: weakref.WeakKeyDictionary[Any, tuple[Placement, int]] = weakref.WeakKeyDictionary()
_WANTED: weakref.WeakKeyDictionary[Any, tuple[Placement, int]] = weakref.WeakKeyDictionary()


class RanksDisagree(Error):
    """Experts are not in the same places on all ranks, or some ranks moved and others did not: the job has to end."""


def ask(trainer: Any) -> tuple[Placement, int]:
    """Where experts are, from the workers, which let them move from now on.

    :raises InvalidInput: when they cannot move, with the reason
    :raises RanksDisagree: when ranks say different places
    """
    refuse_settings(trainer.config.actor_rollout_ref)
    placement, epoch, refusal = _same(_call(trainer, ASK))
    if placement is None:
        raise InvalidInput(refusal or "verl: the workers said nothing of experts")
    _TOLD[trainer] = placement, epoch
    return placement, epoch


def know(trainer: Any) -> tuple[Placement, int] | None:
    """The same of workers that need not be able to; None: experts were never moved, as far as they know."""
    if not callable(getattr(getattr(trainer, _GROUP, None), ASK, None)):
        return None
    placement, epoch, _ = _same(_call(trainer, ASK, False))
    return None if placement is None else (placement, epoch)


def follow(trainer: Any, session: Session) -> None:
    """Before a plan: it begins where experts are, which a checkpoint or a failed move may have changed."""
    placement, epoch = ask(trainer)
    here = session.current
    if session.epoch != epoch or here is None or not np.array_equal(placement.physical_to_logical, here):
        session.resume(placement.physical_to_logical, epoch)


def wanting(trainer: Any) -> Callable[[Placement, int], None]:
    """`on_placement` of a trainer's session: `move` does it when the plan is complete."""
    mine = weakref.ref(trainer)

    def note(placement: Placement, epoch: int) -> None:
        here, _ = _TOLD[mine()]
        expect_shape(placement, here)
        if placement != here:  # else workers need not load what they have offloaded
            _WANTED[mine()] = placement, epoch

    return note


def move(trainer: Any, session: Session) -> None:
    """Before the first pass over the batch: experts go where the plan wants them, on all ranks.

    A move that failed whole leaves a step that trains on the plan's layout with experts where they were.
    :raises Exception: what a rank raised, when training cannot go on
    """
    wanted = _WANTED.pop(trainer, None)
    if wanted is None:
        return
    begin = time.perf_counter()
    placement, epoch, failed = _same(_call(trainer, MOVE, *wanted))
    if placement is None:
        raise RanksDisagree("verl: after a move the workers said nothing of experts")
    _TOLD[trainer] = placement, epoch
    if failed:
        session.not_moved(failed)
        session.resume(placement.physical_to_logical, epoch, keep_plan=True)
    elif (placement, epoch) != wanted:
        raise RanksDisagree(f"verl: found experts at epoch {epoch} after a move, wanted those of epoch {wanted[1]}")
    session.metrics["routepack/ms_moves"] = 1e3 * (time.perf_counter() - begin)


def _call(trainer: Any, method: str, *args: Any) -> Sequence[Told]:
    group = getattr(trainer, _GROUP)
    call = getattr(group, method, None)
    missing = (
        "wanted VERL_USE_EXTERNAL_MODULES=routepack.adapters.verl_auto in the environment of all processes, before "
        "workers are made"
    )
    if not callable(call):
        raise InvalidInput(f"verl: {type(group).__name__} has no method {method}; {missing}")
    try:
        said: Sequence[Told] = call(*args)
    except AttributeError as error:
        # Not one that the method raised, with its name in what Ray says of where.
        if not re.search(rf"no attribute '\w*{method}'", str(error)):
            raise
        raise InvalidInput(f"verl: the workers have no method {method}; {missing}") from error
    return said


def _same(said: Sequence[Told]) -> Told:
    """What all ranks say. @raises RanksDisagree"""
    if not said:
        raise RanksDisagree("verl: no worker said where experts are")
    first = said[0]
    for rank, other in enumerate(said):
        if other[:2] != first[:2] or bool(other[2]) != bool(first[2]):
            raise RanksDisagree(
                f"verl: ranks disagree about experts: rank 0 says epoch {first[1]} {first[2]!r}, rank {rank} says "
                f"epoch {other[1]} {other[2]!r}"
            )
    return first


__all__ = ["RanksDisagree", "ask", "follow", "know", "move", "wanting"]
