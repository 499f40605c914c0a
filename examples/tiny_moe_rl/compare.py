#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same rollouts, trained with RoutePack and without, each step from the same weights: what differs is the order of
additions. Prints the largest differences. With --dtype float64 rounding is too small to hide a wrong term.

    python examples/tiny_moe_rl/train.py --steps 50 --record rollouts
    python examples/tiny_moe_rl/compare.py rollouts
    python examples/tiny_moe_rl/compare.py rollouts --round-once
    python examples/tiny_moe_rl/compare.py rollouts --dtype float64

A matrix product in float32 rounds a token differently beside other tokens, since the library cuts larger matrices in
another way. --round-once takes that away: what is stored stays float32, and products are rounded once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import pickle
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from model import Shape
from moving import ExpertMover
from parallel import Grid, launch
from planning import Planning
from train import stay
from trainer import Objective, Seen, Trainer


class RoundOnce(TorchDispatchMode):
    """Matrix products and attention in float32 that are summed in float64, and rounded to float32."""

    PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, more = func.name(), kwargs or {}
        if name not in self.PRODUCTS and "scaled_dot_product" not in name:
            return func(*args, **more)
        wide = tree_map(lambda x: _to(x, torch.float32, torch.float64), (args, more))
        return tree_map(lambda x: _to(x, torch.float64, torch.float32), func(*wide[0], **wide[1]))


def _to(value: Any, found: torch.dtype, wanted: torch.dtype) -> Any:
    return value.to(wanted) if isinstance(value, torch.Tensor) and value.dtype == found else value


def compare(grid: Grid, options: argparse.Namespace) -> None:
    with RoundOnce() if options.round_once else contextlib.nullcontext():
        run(grid, options)


def run(grid: Grid, options: argparse.Namespace) -> None:
    """Two trainers on every rank: experts of one move, those of the other stay. Both begin every optimizer step with
    the weights of the first."""
    torch.set_default_dtype(getattr(torch, options.dtype))
    shape, folder = Shape(), pathlib.Path(options.folder)
    moving, fixed = Trainer(shape, grid), Trainer(shape, grid)
    moving.load_weights(torch.load(folder / "start.pt"))
    planned = Planning(shape, grid, options.capacity, options.deadline, enabled=True)
    plain = Planning(shape, grid, options.capacity, options.deadline, enabled=False)
    mover = ExpertMover(moving, 0)
    worst: dict[str, float] = {}
    passes, beyond = 0, 0
    moved, files = 0, sorted(folder.glob("step*.pkl"))[: options.steps]
    for path in files:
        rollouts = pickle.loads(path.read_bytes())
        ids = list(range(grid.rank, len(rollouts), grid.ranks))
        for planning, trainer in ((planned, moving), (plain, fixed)):
            planning.begin([rollouts[i] for i in ids], ids, trainer.placement)
        schedules = planned.finish(mover.move), plain.finish(stay)
        moved += schedules[0].figures.get("moved_experts", 0)
        for _ in range(options.passes):
            fixed.load_weights(moving.weights())
            seen = [
                trainer.backward(schedule.layout, rollouts, Objective())
                for trainer, schedule in zip((moving, fixed), schedules)
            ]
            now = differences(seen, gradients(moving), gradients(fixed))
            note(worst, now)
            passes, beyond = passes + 1, beyond + (max(now.values(), default=0.0) > 1e-5)
            moving.update(options.rate)
            fixed.zero_gradients()
    planned.close()
    if grid.rank == 0:
        steps = {"steps": len(files), "passes": passes, "passes_beyond_1e-5": beyond}
        print(json.dumps({**steps, "moved_experts": moved, **worst}))


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    return trainer.gather(lambda weight: weight.grad)


def differences(seen: list[Seen], found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative ones: of the loss; of the losses of all answer tokens, as vectors; of the gradient of every tensor, as
    vectors, the worst; and of the whole gradient.

    The loss itself is a sum of answers better and worse than their group, which nearly cancel: its difference is taken
    relative to the mean size of what is summed.
    """
    tokens = [every_token(one) for one in seen]
    errors = {name: float((found[name] - value).double().norm()) for name, value in wanted.items()}
    lengths = {name: float(value.double().norm()) for name, value in wanted.items()}
    size = [float(np.abs(tokens[1]).mean()), float(np.linalg.norm(tokens[1]))]
    if not all(size):
        return {}  # every group agrees with itself: nothing to learn, and no difference to be relative to
    whole = sum(length**2 for length in lengths.values()) ** 0.5
    gradient = sum(error**2 for error in errors.values()) ** 0.5 / whole
    # A tensor without a gradient to speak of has nothing but rounding.
    parts = {name: errors[name] / length for name, length in lengths.items() if length > 1e-6 * whole}
    if dist.get_rank() == 0:
        furthest = max(parts, key=parts.__getitem__)
        said = f"{furthest}: {parts[furthest]:.2e} of {lengths[furthest] / whole:.1%} of the gradient"
        print(f"{said}; the whole gradient: {gradient:.2e}", file=sys.stderr)
    return {
        "loss": abs(seen[0].loss - seen[1].loss) / size[0],
        "token_losses": float(np.linalg.norm(tokens[0] - tokens[1])) / size[1],
        "gradient_of_a_tensor": max(parts.values(), default=0.0),
        "gradient": gradient,
    }


def every_token(seen: Seen) -> np.ndarray[Any, Any]:
    """Losses of all answer tokens of a step, in the order of samples, wherever they trained."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, seen.token_losses)
    losses = {i: values for part in parts for i, values in part.items()}
    if sorted(losses) != list(range(len(losses))) or sum(map(len, parts)) != len(losses):
        raise AssertionError("a sample trained twice, or not at all")
    return np.concatenate([losses[i] for i in range(len(losses))]).astype(np.float64)


def note(worst: dict[str, float], now: dict[str, float]) -> None:
    for name, value in now.items():
        worst[name] = max(worst.get(name, 0.0), value)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what train.py --record left")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ep", type=int, default=2)
    parser.add_argument("--edp", type=int, default=2)
    parser.add_argument("--capacity", type=int, default=384)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--deadline", type=float, default=5.0)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of both trainers")
    parser.add_argument("--round-once", action="store_true", help="products of float32 are summed in float64")
    options = parser.parse_args()
    if options.round_once and options.dtype != "float32":
        parser.error("--round-once: found --dtype float64, wanted float32")
    if not (pathlib.Path(options.folder) / "start.pt").exists():
        parser.error(f"{options.folder}: found no start.pt, wanted a folder that train.py --record wrote")
    return options


if __name__ == "__main__":
    chosen = parse()
    sys.exit(launch(compare, chosen.ep, chosen.edp, chosen))
