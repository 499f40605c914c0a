# SPDX-License-Identifier: Apache-2.0
"""State of a whole model in the order of experts: [L, E, elements] per tensor of an expert, flat otherwise. What every
way of training and moving is measured against."""

from __future__ import annotations

import hashlib

import torch

from . import moe
from .moe import Shape

LogicalState = dict[str, torch.Tensor]


class Mismatch(AssertionError):
    """Two states that should agree do not."""


def initial_state(shape: Shape, seed: int) -> LogicalState:
    chance = torch.Generator().manual_seed(seed)
    state: LogicalState = {
        "bias": torch.zeros(shape.layers, shape.experts),
        "step": torch.zeros(shape.layers, shape.experts, 1),
        "amax": torch.zeros(shape.layers, shape.experts, moe.AMAX_LENGTH),
    }
    for name, size in shape.dense().items():
        drawn = torch.ones(size) if len(size) == 1 else torch.randn(size, generator=chance) * 0.2
        _add(state, shape, f"dense.{name}", drawn.reshape(-1))
    for name, size in shape.expert().items():
        drawn = torch.randn((shape.layers, shape.experts, *size), generator=chance) * 0.2
        _add(state, shape, name, drawn.reshape(shape.layers, shape.experts, -1))
    return state


def _add(state: LogicalState, shape: Shape, name: str, master: torch.Tensor) -> None:
    state[f"{name}.weight"] = master.to(shape.dtype)
    if not shape.exact:
        state[f"{name}.master"] = master
    state[f"{name}.exp_avg"] = torch.zeros_like(master)
    state[f"{name}.exp_avg_sq"] = torch.zeros_like(master)


def digest(state: LogicalState) -> str:
    total = hashlib.sha256()
    for name in sorted(state):
        total.update(name.encode())
        total.update(state[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def expect_equal(found: LogicalState, wanted: LogicalState, where: str) -> None:
    """To the last bit. @raises Mismatch naming the tensor, layer and expert"""
    _expect_same_names(found, wanted, where)
    for name, value in wanted.items():
        if found[name].dtype != value.dtype or not torch.equal(found[name], value):
            raise Mismatch(f"{where}: {name}{_worst(found[name], value)}")


def expect_close(found: LogicalState, wanted: LogicalState, where: str, tolerance: dict[str, float]) -> None:
    """Differences at most `tolerance` times the tensor's largest value; by kind of tensor, none where it is
    not listed. @raises Mismatch naming the tensor, layer and expert"""
    _expect_same_names(found, wanted, where)
    for name, value in wanted.items():
        allowed = tolerance.get(_kind(name), 0.0)
        error = (found[name].double() - value.double()).abs().max().item()
        limit = allowed * value.double().abs().max().item()
        if not error <= limit:
            raise Mismatch(f"{where}: {name}{_worst(found[name], value)}; allowed {limit:.3g}")


def errors(found: LogicalState, wanted: LogicalState) -> dict[str, float]:
    """The largest difference per kind of tensor, in units of the tensor's largest value."""
    worst: dict[str, float] = {}
    for name, value in wanted.items():
        kind = _kind(name)
        scale = max(value.double().abs().max().item(), 1e-30)
        worst[kind] = max(worst.get(kind, 0.0), (found[name].double() - value.double()).abs().max().item() / scale)
    return worst


def _kind(name: str) -> str:
    return "gradient" if name.startswith("gradient.") else name.split(".")[-1]


def _expect_same_names(found: LogicalState, wanted: LogicalState, where: str) -> None:
    if found.keys() != wanted.keys():
        raise Mismatch(f"{where}: found tensors {sorted(found)}, wanted {sorted(wanted)}")


def _worst(found: torch.Tensor, wanted: torch.Tensor) -> str:
    difference = (found.double() - wanted.double()).abs()
    at = [int(i) for i in torch.unravel_index(difference.argmax(), difference.shape)]
    return f"{at}: found {found[tuple(at)].item():.9g}, wanted {wanted[tuple(at)].item():.9g}"
