# SPDX-License-Identifier: Apache-2.0
"""Calls of verl's own worker group on Ray: `python verl_ray_workers.py hooks` prints what its driver heard.

The workers are verl's actor workers, colocated as verl's trainers do it. Their engine is none, and their experts are
where they are told to be: what travels is what is tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import types
from typing import Any

import ray
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers import engine_workers

from routepack import Placement

HOME = Placement.identity(layers=2, experts=8, ranks=2)
AWAY = Placement.from_maps(ranks=2, physical_to_logical=HOME.physical_to_logical[:, ::-1].copy())


class Placed:
    """A move to epoch 2 fails whole, one to epoch 3 does not."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.placement, self.epoch = HOME, 0

    def try_move(self, placement: Placement, epoch: int) -> str:
        self.epoch = epoch
        if epoch == 2:
            return "no room"
        if epoch == 3:
            raise RuntimeError("layer 1 is torn")
        self.placement = placement
        return ""


_dispatch: Any = Dispatch
_register: Any = register


class ActorWorker(engine_workers.ActorRolloutRefWorker):
    def __init__(self) -> None:
        Worker.__init__(self)

    @_register(dispatch_mode=_dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        from routepack.adapters import experts

        engine = types.SimpleNamespace(module=[Placed(self.rank)], train_mode=contextlib.nullcontext)
        self.actor: Any = types.SimpleNamespace(engine=engine)
        experts.of_model = lambda chunks: chunks[0]

    @_register(dispatch_mode=_dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def lose(self, what: str) -> None:
        """As on a node where a hook was refused, or the environment is not set."""
        from routepack.adapters import verl, verl_worker

        if self.rank == 1:
            (verl._REPLACED if what == "hook" else verl_worker._REPLACED).put_back()


class Trainer:
    def __init__(self, group: Any) -> None:
        actor = types.SimpleNamespace(strategy="megatron")
        self.config = types.SimpleNamespace(actor_rollout_ref=types.SimpleNamespace(actor=actor))
        self.actor_rollout_wg = group


class Told:
    """What a session hears of a move."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.said: list[Any] = []

    def not_moved(self, text: str) -> None:
        self.said.append(text)

    def resume(self, maps: Any, epoch: int, *, keep_plan: bool) -> None:
        self.said.append([maps.tolist(), epoch])


def main(hooks: bool) -> dict[str, list[Any]]:
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.single_controller.ray.base import create_colocated_worker_cls

    from routepack.adapters import verl_cells, verl_experts, verl_worker

    verl_worker.install_methods(engine_workers)
    folder = str(pathlib.Path(__file__).parent)
    environment = {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
    if hooks:
        environment["VERL_USE_EXTERNAL_MODULES"] = "routepack.adapters.verl_auto"
    ray.init(
        address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False,
        runtime_env={"env_vars": environment},
    )  # fmt: skip
    both = create_colocated_worker_cls({"actor_rollout": RayClassWithInitArgs(cls=ray.remote(ActorWorker))})
    pool = RayResourcePool(process_on_nodes=[2], use_gpu=False, max_colocate_count=1)
    groups: Any = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=both, device_name="cpu")
    trainer = Trainer(groups.spawn({"actor_rollout"})["actor_rollout"])
    heard: list[Any] = []
    trainer.actor_rollout_wg.init_model()
    session: Any = Told()
    try:
        heard.append(verl_experts.ask(trainer)[0] == HOME)
        for epoch in (1, 2, 3):
            verl_experts.wanting(trainer)(AWAY if epoch == 1 else HOME, epoch)
            verl_experts.move(trainer, session)
            placement, known = verl_experts.ask(trainer)
            heard.append([placement == AWAY, known, session.said])
            session.said = []
    except Exception as error:
        heard.append(f"{type(error).__name__}: {error}")
    cuts = []
    for what in ("", "hook", "method"):
        if what:
            trainer.actor_rollout_wg.lose(what)
        cuts.append(verl_cells._refusal(trainer.actor_rollout_wg)[0])
    ray.shutdown()
    return {"moves": heard, "cuts": cuts}


if __name__ == "__main__":
    import verl_ray_workers  # type: ignore[import-not-found]  # by the name under which an actor finds it

    print(json.dumps(verl_ray_workers.main("hooks" in sys.argv[1:])))
