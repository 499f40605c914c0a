# SPDX-License-Identifier: Apache-2.0
"""What RoutePack adds when slime cuts 512 samples of a Qwen3-30B-A3B.

`python -m adapters.measure_slime` in python/tests.

With ROUTEPACK_SLIME_CHECKOUT slime's own schedule builder is measured, else one of the same shapes.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import types
from typing import Any

import numpy as np
import torch

from routepack.adapters import Settings, slime

from . import slime_like
from .batches import COST
from .slime_jobs import like

SAMPLES, LAYERS, EXPERTS, TOP_K, CAP = 512, 48, 128, 8, 8192


PARALLEL = {"dp_size": 8, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}


def arguments() -> Any:
    return types.SimpleNamespace(
        use_dynamic_batch_size=True, max_tokens_per_gpu=CAP, global_batch_size=SAMPLES, balance_data=False,
        balance_by_flops=False, num_experts=EXPERTS, moe_layer_freq=1, expert_model_parallel_size=8,
    )  # fmt: skip


def data_of(median: float) -> dict[str, Any]:
    """A batch of samples of uneven lengths with routes."""
    draw = np.random.default_rng(0)
    lengths = np.clip(np.exp(draw.normal(np.log(median), 0.8, SAMPLES)), median / 8, CAP).astype(int).tolist()
    lean = draw.integers(0, EXPERTS // TOP_K, (SAMPLES // 8, LAYERS))
    routes = []
    for i, n in enumerate(lengths):
        first = (lean[i // 8] + draw.geometric(0.2, (n - 1, LAYERS))) % (EXPERTS // TOP_K)
        routes.append(torch.from_numpy((first[..., None] + np.arange(TOP_K) * (EXPERTS // TOP_K)).astype(np.int32)))
    return {
        "tokens": [[1] * n for n in lengths],
        "rollout_ids": list(range(SAMPLES)),
        "rollout_routed_experts": routes,
    }


def main() -> None:
    checkout = os.environ.get("ROUTEPACK_SLIME_CHECKOUT")
    if checkout:
        sys.path.insert(0, checkout)
        from slime.utils.dp_schedule import build_dp_schedule  # type: ignore[import-not-found]

        slime_like.build_dp_schedule = build_dp_schedule
    module = like()
    module.build_dp_schedule = slime_like.build_dp_schedule
    args, parallel, batch = arguments(), PARALLEL, data_of(1600)
    routes, lengths = batch["rollout_routed_experts"], [len(some) for some in batch["tokens"]]

    def once(manager: Any) -> float:
        given = dict(batch)
        begin = time.perf_counter()
        manager._split_train_data_by_dp(given)
        return 1e3 * (time.perf_counter() - begin)

    manager = module.RolloutManager(args, parallel)
    own = statistics.median(once(manager) for _ in range(7))
    slime.install(
        Settings(cost=COST, effort=os.environ.get("EFFORT", "default"), on_metrics=lambda metrics, step: None),
        module=module,
    )
    manager = module.RolloutManager(args, parallel)
    slime.session_of(manager)
    time.sleep(3)  # a rollout lasts longer: the planner is ready
    late = once(manager)
    late_metrics = slime.session_of(manager).metrics
    slime._COUNTS.clear()
    begin = time.perf_counter()
    for some in routes:
        slime.count_sample(args, types.SimpleNamespace(rollout_routed_experts=some))
    each = 1e3 * (time.perf_counter() - begin) / SAMPLES
    took = []
    cpu = time.process_time()
    for _ in range(9):
        took.append((once(manager), slime.session_of(manager).metrics))
    cpu = 1e3 * (time.process_time() - cpu) / len(took)
    assert all(metrics["routepack/used"] == 1.0 for _, metrics in took)
    whole, metrics = sorted(took, key=lambda pair: pair[0])[len(took) // 2]
    slime.session_of(manager).close()
    shown = ("ms_routes", "ms_planner", "ms_check", "ms_adapter")
    print(f"slime alone: {own:.1f} ms; {sum(lengths)} tokens, {sum(r.nbytes for r in routes) / 1e9:.2f} GB of routes")
    print(f"counted as samples arrive ({each:.2f} ms each): {whole:.1f} ms in all")
    print("  " + ", ".join(f"{name} {metrics['routepack/' + name]:.1f}" for name in shown))
    print(f"  {cpu:.1f} ms of CPU time in the trainer, slime's own part included")
    print(
        "  " + f"planner itself: {metrics['routepack/ms_total']:.1f} ms; worst of 9: {max(t for t, _ in took):.1f} ms"
    )
    print(
        f"counted when the batch is cut: {late:.0f} ms in all, {late_metrics['routepack/ms_routes']:.0f} of it counting"
    )


if __name__ == "__main__":
    main()
