# SPDX-License-Identifier: Apache-2.0
"""slime's own rollout manager as a real Ray actor: loads rollouts, converts, cuts, ships. Usage: FOLDER OWN|PLAN|MOVE.

Run as a process of its own, with the checkout and the folder's sitecustomize on PYTHONPATH. Writes what each rank got.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import numpy as np


def data_source(args: Any) -> Any:
    """In place of a data set: rollouts are loaded from a file."""
    return argparse.Namespace(args=args)


def rollout(*_: Any) -> None:
    raise AssertionError("rollouts are loaded, not generated")


def main(folder: pathlib.Path, how: str) -> None:
    import ray  # type: ignore[import-not-found]
    from slime.ray import rollout as owner  # type: ignore[import-not-found]

    from routepack.adapters import Settings, slime
    from tests_adapters.batches import COST, PATIENT, Batch  # type: ignore[import-not-found]
    from tests_adapters.slime_jobs import PARALLEL, arguments  # type: ignore[import-not-found]

    batch = Batch()
    args = arguments(
        batch, debug_train_only=True, debug_rollout_only=False, use_fault_tolerance=False, ci_test=False,
        data_source_path=f"{__name__}.data_source", rollout_function_path=f"{__name__}.rollout",
        eval_function_path=f"{__name__}.rollout", custom_reward_post_process_path=None,
        custom_convert_samples_to_train_data_path=None, load_debug_rollout_data=str(folder / "{rollout_id}.pt"),
        load_debug_rollout_data_subsample=None, save_debug_rollout_data=None, custom_rollout_log_function_path=None,
        advantage_estimator="ppo", rewards_normalization=False, reward_key=None, use_wandb=False,
        use_tensorboard=False, use_rollout_routing_replay=True, rollout_top_p=1.0, rollout_batch_size=batch.samples,
        n_samples_per_prompt=1, wandb_always_use_train_step=False,
    )  # fmt: skip
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=True)  # never a neighbour's
    parallel: dict[str, Any] = dict(PARALLEL)
    if how != "OWN":
        slime.install(Settings(cost=COST, mode="both" if how == "MOVE" else "packing", **PATIENT))
        home = np.broadcast_to(np.arange(batch.experts), (batch.layers - 1, batch.experts))
        parallel[slime.PLACEMENT] = slime.placement_message(home, 2, 4)  # as training actors say it
    manager = owner.RolloutManager.options(num_cpus=1, num_gpus=0).remote(args, None)
    ray.get(manager.set_train_parallel_config.remote(parallel))
    parts = [ray.get(box.inner) for box in ray.get(manager.generate.remote(0))]
    names = ("partition", "micro_batch_indices", "num_microbatches", "global_batch_sizes")
    (folder / "parts.json").write_text(json.dumps([{name: part[name] for name in names} for part in parts]))
    carried = [part.get(slime.PLACEMENT) for part in parts]
    told = [None if one is None else [one["epoch"], one["maps"].tolist()] for one in carried]
    (folder / "placements.json").write_text(json.dumps(told))
    ray.shutdown()


if __name__ == "__main__":
    import slime_actor_job  # type: ignore[import-not-found]  # by the name under which an actor finds it

    slime_actor_job.main(pathlib.Path(sys.argv[1]), sys.argv[2])
