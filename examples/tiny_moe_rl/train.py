#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning of a tiny mixture-of-experts model, with RoutePack inside every step.

    python examples/tiny_moe_rl/train.py                  # about ten minutes on two cores
    python examples/tiny_moe_rl/train.py --without-routepack
    torchrun --nproc-per-node 4 examples/tiny_moe_rl/train.py

README.md in this folder says what happens and what to look at.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import pathlib
import pickle
import shutil
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from grpo import Policy, Rollout, add_reference, sample_group
from model import Shape, first_weights
from moving import ExpertMover
from parallel import Grid, launch
from planning import Planning, Schedule
from routepack import Placement
from routepack.transfer import load_placement, save_placement, stamp
from tasks import fresh_tasks, tasks_of_step, worked
from trainer import Objective, Trainer, load_policy, whole_policy

WARM_UP_TEXTS, WARM_UP_RATE = 36, 3e-3  # per step, all ranks together; learning rate at its highest
# What must be the same when a run goes on.
FIXED = ("seed", "ep", "edp", "without_routepack", "prompts", "pool", "group", "passes", "capacity", "rate", "clip", "kl")


def run(grid: Grid, options: argparse.Namespace) -> None:
    """The main loop, on every rank."""
    shape = Shape()
    trainer = Trainer(shape, grid)
    sampler, reference = whole_policy(shape), whole_policy(shape)
    log = Log(grid, options.log)

    first, epoch = 0, 0
    if options.resume:
        first, epoch = load_checkpoint(options, trainer, reference)
    else:
        start(trainer, options, log)
        load_policy(reference, trainer.weights())
        log.say(f"before: {on_fresh_prompts(reference, grid, options.seed)}")
    planning = Planning(shape, grid, options.capacity, options.deadline, not options.without_routepack)
    mover = None if options.without_routepack else ExpertMover(trainer, epoch)
    objective = Objective(options.clip, options.kl)

    for step in range(first, options.steps):
        began = time.perf_counter()
        weights = trainer.weights()
        load_policy(sampler, weights)
        mine, ids = rollouts_of_step(sampler, grid, options, step)
        sampled = time.perf_counter()

        planning.begin(mine, ids, trainer.placement)
        # While rank 0 plans: the penalty's reference, and answers to wherever they will train.
        if options.kl:
            add_reference(reference, mine)
        rollouts = share(mine, ids, grid)
        schedule = planning.finish(mover.move if mover else stay)

        as_predicted = True
        rate = options.rate * min(1.0, (step + 1) / 20)  # Adam knows nothing yet at first
        ratios = []
        for _ in range(options.passes):  # one plan serves every pass over the answers
            seen = trainer.backward(schedule.layout, rollouts, objective)
            as_predicted &= check(grid, planning, schedule, seen.received)
            gradient = trainer.update(rate)
            ratios.append(seen.ratio)
        if options.record:
            record(options.record, grid, step, rollouts, weights)
        log.step(step, rollouts, schedule, {
            "loss": seen.loss,
            "ratios": ratios,
            "gradient": gradient,
            "as_predicted": as_predicted,
            "policy": digest(weights),
            "sample_s": sampled - began,
            "step_s": time.perf_counter() - began,
        })
        if options.checkpoint and (step + 1) % options.checkpoint_every == 0:
            save_checkpoint(options, trainer, mover.engine.epoch if mover else 0, reference, step + 1)
    planning.close()
    load_policy(sampler, trainer.weights())
    log.say(f"after: {on_fresh_prompts(sampler, grid, options.seed)}")
    log.end()


def stay(placement: Placement) -> int:
    """Without RoutePack no expert ever moves."""
    return 0


def start(trainer: Trainer, options: argparse.Namespace, log: Log) -> None:
    """The policy that reinforcement learning begins with: from a file, or by supervised learning of worked answers."""
    source = pathlib.Path(options.replay) / "start.pt" if options.replay else options.start
    if source and pathlib.Path(source).exists():
        trainer.load_weights(torch.load(source))
        return
    trainer.load_weights(first_weights(trainer.shape, options.seed))
    began, grid = time.perf_counter(), trainer.grid
    for step in range(options.warm_up):
        chance = np.random.default_rng([options.seed, 77, step])
        texts = [worked(chance) for _ in range(WARM_UP_TEXTS)]
        loss = trainer.backward_on_answers(texts[grid.rank :: grid.ranks])
        rise, fall = min(1.0, (step + 1) / 20), math.cos(math.pi / 2 * step / options.warm_up)
        trainer.update(WARM_UP_RATE * rise * (0.1 + 0.9 * fall))
        if (step + 1) % 100 == 0:
            log.say(f"warm-up {step + 1:4d}: loss {loss:.3f} a token, {time.perf_counter() - began:.0f} s")
    trainer.forget_moments()
    if options.start:
        keep(pathlib.Path(options.start), trainer.weights(), trainer.grid)


def rollouts_of_step(
    sampler: Policy, grid: Grid, options: argparse.Namespace, step: int
) -> tuple[list[Rollout], list[int]]:
    """This rank's answers, and their numbers in the step. Prompts are dealt out; each has its own stream of chance."""
    if options.replay:
        everything = pickle.loads((pathlib.Path(options.replay) / f"step{step:05d}.pkl").read_bytes())
        ids = list(range(grid.rank, len(everything), grid.ranks))
        return [everything[i] for i in ids], ids
    mine, ids = [], []
    for prompt, task in enumerate(tasks_of_step(options.seed, step, options.prompts, options.pool)):
        if prompt % grid.ranks == grid.rank:
            chance = torch.Generator().manual_seed(options.seed * 1_000_003 + step * 1009 + prompt)
            mine += sample_group(sampler, task, prompt, options.group, chance)
            ids += range(prompt * options.group, (prompt + 1) * options.group)
    return mine, ids


def on_fresh_prompts(policy: Policy, grid: Grid, seed: int) -> str:
    """Rewards of answers to prompts that are not trained on."""
    seen = torch.zeros(3, dtype=torch.float64)
    for prompt, task in enumerate(fresh_tasks(seed, 64)):
        if prompt % grid.ranks == grid.rank:
            for rollout in sample_group(policy, task, prompt, 4, torch.Generator().manual_seed(prompt)):
                seen += torch.tensor([1.0, rollout.reward, rollout.right])
    dist.all_reduce(seen)
    answers, reward, right = seen.tolist()
    return f"reward {reward / answers:.3f}, right {right / answers:.0%}, on 64 prompts that are not trained on"


def share(mine: list[Rollout], ids: list[int], grid: Grid) -> list[Rollout]:
    """All answers of the step, in order, on every rank."""
    parts: list[Any] = [None] * grid.ranks
    dist.all_gather_object(parts, (ids, mine))
    numbered = {i: rollout for part in parts for i, rollout in zip(*part)}
    return [numbered[i] for i in range(len(numbered))]


def check(grid: Grid, planning: Planning, schedule: Schedule, received: np.ndarray[Any, Any]) -> bool:
    """Whether every rank got the routed tokens that were predicted, in every row and layer."""
    mine = schedule.predicted[:, grid.lane, :, grid.ep_rank]
    everything: list[Any] = [None] * grid.ranks
    dist.all_gather_object(everything, (received, bool((received == mine).all())))
    if grid.rank == 0:
        counted = np.zeros_like(schedule.predicted)
        for rank, (tokens, _) in enumerate(everything):
            counted[:, rank // grid.ep, :, rank % grid.ep] = tokens
        planning.observe(schedule, counted)
    return all(equal for _, equal in everything)


def digest(weights: dict[str, torch.Tensor]) -> str:
    """Of all weights in the order of experts: equal policies, equal digests."""
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(weights[name].contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


# Files.


def keep(path: pathlib.Path, what: Any, grid: Grid) -> None:
    """Rank 0 writes; whole or not at all."""
    if grid.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        torch.save(what, part)
        part.replace(path)


def record(folder: str, grid: Grid, step: int, rollouts: list[Rollout], weights: dict[str, torch.Tensor]) -> None:
    """Answers with their routes, and the policy of the start."""
    if step == 0:
        keep(pathlib.Path(folder) / "start.pt", weights, grid)
    if grid.rank == 0:
        (pathlib.Path(folder) / f"step{step:05d}.pkl").write_bytes(pickle.dumps(rollouts))


def save_checkpoint(
    options: argparse.Namespace, trainer: Trainer, epoch: int, reference: Policy, step: int
) -> None:
    """Every rank its memory, as it lies in the slots; beside them the placement; `latest` names the last whole one."""
    grid, root = trainer.grid, pathlib.Path(options.checkpoint)
    part, whole = root / f"step{step:05d}.part", root / f"step{step:05d}"
    part.mkdir(parents=True, exist_ok=True)
    torch.save({"memory": trainer.memory(), "placement": stamp(trainer.placement, epoch)}, part / f"rank{grid.rank}.pt")
    if grid.rank == 0:
        save_placement(part, trainer.placement, epoch)
        copy = {"model": reference.model.state_dict(), "experts": reference.experts.state_dict()}
        fixed = {name: getattr(options, name) for name in FIXED}
        torch.save({"step": step, "reference": copy, "options": fixed}, part / "common.pt")
    dist.barrier()
    if grid.rank == 0:
        shutil.rmtree(whole, ignore_errors=True)
        part.rename(whole)
        (root / "latest.part").write_text(whole.name, encoding="utf-8")
        (root / "latest.part").replace(root / "latest")
    dist.barrier()


def load_checkpoint(options: argparse.Namespace, trainer: Trainer, reference: Policy) -> tuple[int, int]:
    """@returns the next step, and the epoch of the placement"""
    root = pathlib.Path(options.checkpoint)
    whole = root / (root / "latest").read_text(encoding="utf-8")
    common = torch.load(whole / "common.pt")
    for name, value in common["options"].items():
        if getattr(options, name) != value:
            option = "--" + name.replace("_", "-")
            raise SystemExit(f"{option}: found {getattr(options, name)}, wanted {value}, as in {whole}")
    mine = torch.load(whole / f"rank{trainer.grid.rank}.pt")
    saved = load_placement(whole, stamped=mine["placement"], shape=trainer.placement)
    trainer.load_memory(mine["memory"], saved.placement)
    reference.model.load_state_dict(common["reference"]["model"])
    reference.experts.load_state_dict(common["reference"]["experts"])
    return common["step"], saved.epoch


class Log:
    """A line per step for people, and one of JSON for programs. Only rank 0 speaks."""

    def __init__(self, grid: Grid, path: str | None) -> None:
        self.loud, self.grid = grid.rank == 0, grid
        self.file = open(path, "a", encoding="utf-8") if path and self.loud else None  # noqa: SIM115
        self.kept: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        if self.loud:
            print(text, flush=True)

    def step(self, step: int, rollouts: list[Rollout], schedule: Schedule, figures: dict[str, Any]) -> None:
        sent = torch.tensor(schedule.figures["sent_bytes"])
        dist.all_reduce(sent)
        if not self.loud:
            return
        now = {
            "step": step,
            "reward": float(np.mean([r.reward for r in rollouts])),
            "right": float(np.mean([r.right for r in rollouts])),
            **schedule.figures,
            **figures,
            "sent_bytes": int(sent),
            "placement": schedule.placement.fingerprint,
            "routed_tokens": int(schedule.predicted.sum()),
        }
        self.kept.append(now)
        if self.file is not None:
            print(json.dumps(now), file=self.file, flush=True)
        said = (
            f"step {step:4d}  reward {now['reward']:.3f} (right {now['right']:4.0%})  loss {now['loss']:+.4f}  "
            f"efficiency {now['efficiency_before']:.3f} -> {now['efficiency']:.3f}  "
            f"busiest rank {1 / now['efficiency_before']:.2f} -> {1 / now['efficiency']:.2f} of the mean  "
            f"{now['routed_tokens']} routed tokens {'as predicted' if now['as_predicted'] else 'NOT AS PREDICTED'} "
            f"on all {self.grid.ranks} ranks"
        )
        if now["planned"]:
            hidden = "hidden" if now["hidden"] else f"{-now['slack_ms']:.0f} ms of it not hidden"
            said += f"  moved {now['moved_experts']} experts, {now['sent_bytes'] / 1e6:.2f} MB"
            said += f"  plan {now['plan_ms']:.0f} ms, {hidden}"
        print(f"{said}  {now['step_s']:.2f} s", flush=True)

    def end(self) -> None:
        if self.loud and self.kept:
            first, last = self.kept[:20], self.kept[-20:]

            def mean(part: list[dict[str, Any]], name: str) -> float:
                return float(np.mean([now[name] for now in part]))

            more = sum(now["busiest"] for now in self.kept) / sum(now["busiest_before"] for now in self.kept) - 1
            print(
                f"reward {mean(first, 'reward'):.3f} (first {len(first)} steps) -> {mean(last, 'reward'):.3f} "
                f"(last {len(last)}); right {mean(first, 'right'):.0%} -> {mean(last, 'right'):.0%}; "
                f"work of the busiest ranks {more:+.1%}; "
                f"efficiency {mean(self.kept, 'efficiency_before'):.3f} -> {mean(self.kept, 'efficiency'):.3f}; "
                f"as predicted in {sum(now['as_predicted'] for now in self.kept)} of {len(self.kept)} steps",
                flush=True,
            )
        if self.file is not None:
            self.file.close()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--without-routepack", action="store_true", help="experts stay where they are; samples are packed by length")
    add("--steps", type=int, default=800, help="GRPO steps")
    add("--seed", type=int, default=0)
    add("--ep", type=int, default=2, help="ranks that share the experts")
    add("--edp", type=int, default=2, help="times that all experts exist")
    add("--prompts", type=int, default=16, help="per step")
    add("--pool", type=int, default=64, help="prompts that there are")
    add("--group", type=int, default=8, help="answers to each prompt")
    add("--passes", type=int, default=2, help="optimizer steps on the answers of a step")
    add("--capacity", type=int, default=384, help="tokens of a microbatch")
    add("--rate", type=float, default=2e-4, help="learning rate")
    add("--clip", type=float, default=0.2, help="how far a probability ratio counts")
    add("--kl", type=float, default=0.0, help="penalty for leaving the policy of the start")
    add("--warm-up", type=int, default=700, help="supervised steps before; see the README")
    add("--start", help="file with the policy of the start: read if it is there, else written after the warm-up")
    add("--deadline", type=float, default=5.0, help="seconds after which the best plan so far is taken")
    add("--record", metavar="DIR", help="keep the rollouts")
    add("--replay", metavar="DIR", help="use those instead of sampling")
    add("--checkpoint", metavar="DIR", help="where checkpoints go")
    add("--checkpoint-every", type=int, default=50, metavar="STEPS")
    add("--resume", action="store_true", help="go on from the last whole checkpoint")
    add("--log", metavar="FILE", help="append a line of JSON per step")
    options = parser.parse_args(arguments)
    if options.resume and not (options.checkpoint and (pathlib.Path(options.checkpoint) / "latest").exists()):
        parser.error("--resume: found no checkpoint, wanted --checkpoint DIR with one")
    if Shape().experts % options.ep:
        parser.error(f"--ep: found {options.ep}, wanted a divisor of {Shape().experts}")
    return options


if __name__ == "__main__":
    chosen = parse()
    sys.exit(launch(run, chosen.ep, chosen.edp, chosen))
