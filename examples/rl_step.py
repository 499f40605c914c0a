#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One step of a reinforcement learning job, as a trainer would drive it. Usage: rl_step.py OUTPUT_FOLDER

Real routes of gpt-oss-20b stand for the rollouts: worker processes count them as they arrive, a plan is made in the
background, experts may begin to move before it is there, and its layout goes to the trainer.
"""

from __future__ import annotations

import csv
import json
import lzma
import multiprocessing
import pathlib
import sys

import numpy as np
import numpy.typing as npt

import routepack
from routepack.exporters import megatron, slime
from routepack.report import Recording, analyse, write_html

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROUTES = ROOT / "tests" / "data" / "routes"
EXPERTS, TOP_K, LAYERS = 32, 4, 24
CAPACITY = 2048

Rollout = tuple[int, npt.NDArray[np.uint8]]  # id, expert ids [tokens, layers, k]


def recorded_rollouts() -> list[Rollout]:
    """24 answers with the experts that each of their tokens chose."""
    ids = np.frombuffer(lzma.decompress((ROUTES / "gptoss20b-tokens.u8.xz").read_bytes()), dtype=np.uint8)
    rollouts: list[Rollout] = []
    begin = 0
    with open(ROUTES / "gptoss20b-tokens.csv", encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            end = begin + int(line["tokens"]) * LAYERS * TOP_K
            rollouts.append((int(line["sample"]), ids[begin:end].reshape(-1, LAYERS, TOP_K)))
            begin = end
    return rollouts


def count(rollouts: list[Rollout], part: str) -> None:
    """What a rollout worker does: routes come in, counts a hundredth of their size go out."""
    builder = routepack.WindowBuilder(experts=EXPERTS, top_k=TOP_K)
    for rollout, ids in rollouts:
        builder.add(ids, id=rollout)
    builder.seal(part)


def count_on_workers(rollouts: list[Rollout], folder: pathlib.Path, workers: int) -> routepack.Window:
    """Every worker counts its share; the parts become one window."""
    parts = [str(folder / f"part{k}.safetensors") for k in range(workers)]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count, args=(rollouts[k::workers], part)) for k, part in enumerate(parts)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"a worker ended with status {process.exitcode}")
    builder = routepack.WindowBuilder(experts=EXPERTS, top_k=TOP_K)
    for part in parts:
        builder.merge(part)
    return builder.window()


def main(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    window = count_on_workers(recorded_rollouts(), folder, workers=2)
    window.save(folder / "window.safetensors")
    print(f"rollouts: {window.samples} samples, {int(window.lengths.sum())} tokens")

    cost = routepack.CostModel.load(ROOT / "examples" / "gptoss20b.toml")
    params = routepack.PlanParams(two_batches=True, seed=7)
    recording = Recording()
    # A real job has one planner for all its steps.
    with routepack.Planner(
        routepack.Topology(dp=2, ep=2), capacity=CAPACITY, cost=cost, params=params, progress=recording
    ) as planner:
        future = planner.submit(window)
        early = future.placement  # final for the first batch of moves: they may start while packing goes on
        home = routepack.Placement.identity(layers=LAYERS, experts=EXPERTS, ranks=2)
        moved = int((early.rank_of != home.rank_of).sum())
        print(f"first moves: {moved} experts; packing {'is done' if future.done() else 'goes on'}")
        plan = future.result(timeout=30)
        print(f"plan: {plan.num_rows} rows, {100 * (plan.gap or 0.0):.2f} % above the bound, complete: {plan.complete}")
        print(planner.critical_path(aux_ms=0.0, actor_ms=500.0))

        # The trainer counts what its ranks really got; here it gets what the plan says.
        print(planner.observe(plan.rank_loads(window)))

    plan.save(folder / "plan.json")
    metrics = {name: value for name, value in plan.metrics.items() if not name.startswith("routepack/ms_")}
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")

    schedule = slime(plan, lengths=window.lengths, max_tokens_per_gpu=CAPACITY)
    (folder / "slime.json").write_text(json.dumps(schedule._asdict()) + "\n", encoding="utf-8")
    groups = megatron(plan, lengths=window.lengths, max_seqlen_per_dp_cp_rank=CAPACITY)
    (folder / "megatron.json").write_text(json.dumps(groups) + "\n", encoding="utf-8")
    print(f"slime: {schedule.num_microbatches[0]} microbatches on each of {len(schedule.partitions)} ranks")
    print(f"megatron: {len(groups)} groups")
    write_report(plan, window, recording, folder / "report.html")


def write_report(plan: routepack.Plan, window: routepack.Window, recording: Recording, page: pathlib.Path) -> None:
    """A page to look at, where what it needs is installed."""
    try:
        write_html(analyse(plan, window, progress=recording.steps), page)
    except (ImportError, routepack.InvalidInput) as error:
        print(f"report: none ({error})")
        return
    print(f"report: {page.name}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(pathlib.Path(sys.argv[1]))
