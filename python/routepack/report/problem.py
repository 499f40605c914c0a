# SPDX-License-Identifier: Apache-2.0
"""What a plan was made for, read from its text and its window."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import routepack

Layout = list[list[list[int]]]  #: samples of each slot of each row
Maps = npt.NDArray[np.int32]  #: [layers, slots]: the expert in each slot


@dataclass(frozen=True)
class Problem:
    """Samples, ranks, rules and prices, without an answer."""

    counts: npt.NDArray[Any]  #: [samples, layers, experts]
    lengths: npt.NDArray[np.int64]  #: [samples and dummies]
    atomic: npt.NDArray[np.int32] | None
    pad_counts: npt.NDArray[np.uint32] | None
    shards: list[list[int]]
    ranks: int
    capacity: int
    sync: str
    stages: list[tuple[str, float, float]]  #: name, alpha, beta
    weights: list[float]  #: of a routed token, per layer
    layer_names: list[str]
    sample_multiple: int
    cell_multiple: int
    min_rows: int
    row_multiple: int
    max_samples_per_cell: int
    equal_count: bool
    rows_lower_bound: int

    @property
    def slots(self) -> int:
        """D, data-parallel slots."""
        return sum(len(shard) for shard in self.shards)

    @property
    def aligned(self) -> list[int]:
        """Lengths as the cap counts them."""
        m = self.sample_multiple
        return [int(t) for t in -(-self.lengths // m) * m]


def read_problem(document: dict[str, Any], window: routepack.Window) -> Problem:
    """The problem that the plan file `document` answers; it must have been checked against `window`."""
    layers = window.layers
    expert = document["cost"].get("expert", 1.0)
    rules = document.get("constraints", {})
    topology = document["topology"]
    lengths = np.concatenate([
        np.asarray(window.lengths, dtype=np.int64), np.ones(document.get("dummies", 0), dtype=np.int64)
    ])  # fmt: skip
    return Problem(
        counts=window.counts,
        lengths=lengths,
        atomic=window.atomic,
        pad_counts=window.pad_counts,
        shards=topology["shards"],
        ranks=topology["ep"],
        capacity=document["capacity"],
        sync=document.get("sync", "step"),
        stages=[
            (stage.get("name", f"stage{s}"), float(stage.get("alpha", 0.0)), float(stage.get("beta", 0.0)))
            for s, stage in enumerate(document["cost"].get("stages", []))
        ],
        weights=[float(w) for w in expert] if isinstance(expert, list) else [float(expert)] * layers,
        layer_names=[str(number) for number in window.layer_numbers or range(layers)],
        sample_multiple=rules.get("sample_multiple", 1),
        cell_multiple=rules.get("cell_multiple", 1),
        min_rows=max(rules.get("min_rows", 1), topology.get("pp", 1)),
        row_multiple=rules.get("row_multiple", 1),
        max_samples_per_cell=rules.get("max_samples_per_cell", 0),
        equal_count=rules.get("equal_count", False),
        rows_lower_bound=document.get("rows_lower_bound", 1),
    )


def read_document(plan: routepack.Plan) -> dict[str, Any]:
    """The text of a plan as Python values."""
    document = json.loads(plan.to_json())
    assert isinstance(document, dict)
    return document


def current_maps(document: dict[str, Any]) -> tuple[Maps, bool]:
    """Where experts were before the plan, and whether the plan says so; else expert e in slot e."""
    after = np.array(document["physical_to_logical"], dtype=np.int32)
    cycles = document.get("moves", {}).get("cycles")
    if not isinstance(cycles, list) or len(cycles) != len(after):
        return np.tile(np.arange(after.shape[1], dtype=np.int32), (len(after), 1)), False
    before = after.copy()
    for layer, of_layer in enumerate(cycles):
        for cycle in of_layer:
            before[layer, cycle] = after[layer, np.roll(cycle, -1)]
    if not (np.sort(before, axis=1) == np.arange(after.shape[1])).all():
        raise routepack.InvalidInput("moves.cycles: found slots twice, wanted cycles of different slots")
    return before, True


def rank_of(maps: Maps, ranks: int) -> npt.NDArray[np.int32]:
    """[layers, experts]: the rank that holds each expert."""
    owners = np.empty_like(maps)
    slots = np.arange(maps.shape[1], dtype=np.int32) // (maps.shape[1] // ranks)
    np.put_along_axis(owners, maps, np.broadcast_to(slots, maps.shape), axis=1)
    return owners
