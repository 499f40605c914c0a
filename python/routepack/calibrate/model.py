# SPDX-License-Identifier: Apache-2.0
"""What a measured execution takes, as a linear function of what is to be found, once it is known who was slowest.

    row         fixed.row + Σ_s max_d (token_s·Σt + pair_s·Σt²) + Σ_l max_p (token_e·W_p + active_e·n_p)
                + token_a·Σ_l max_p max(sent, received) + fixed_a·layers
    attention   the stage's part for one cell, times timed layers over layers of the stage
    experts     the experts' part      all_to_all   the last two      step   fixed.step

W_p: routed tokens of rank p, each expert's rounded up to a multiple of `tile`; n_p: its experts with load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import routepack
from routepack.calibrate.records import Record
from routepack.convert.errors import shown

Array = npt.NDArray[np.float64]

EXPERT, ACTIVE, EXCHANGE, EXCHANGE_FIXED, ROW, STEP = (
    "expert.token", "expert.active", "all_to_all.token", "all_to_all.fixed", "fixed.row", "fixed.step",
)  # fmt: skip


# What the planner and the simulator read (docs/formats.md).
MOST_CAPACITY = 94_906_265
MOST_TILE = 1 << 20
MOST_LAYERS = 10_000  #: of a stage, and of all together
MOST_SECONDS = 1e6  #: of one term


@dataclass(frozen=True)
class DenseStage:
    """Dense work of one kind: its name and its decoder layers."""

    name: str
    layers: int

    @property
    def token(self) -> str:
        return f"stage.{self.name}.token"

    @property
    def pair(self) -> str:
        return f"stage.{self.name}.pair"


def stages_of(records: Sequence[Record], declared: Sequence[DenseStage] | None) -> list[DenseStage]:
    """Those that were declared, or those that the attention records name, or one for the rows.

    :raises InvalidInput: for names that occur twice or are not declared, or numbers of layers that disagree or are
        more than the simulator takes
    """
    stages = _stages_of(records, declared)
    for stage in stages:
        if stage.layers > MOST_LAYERS:
            found = f"{stage.layers} layers"
            raise routepack.InvalidInput(f"stage {shown(stage.name)}: found {found}, wanted at most {MOST_LAYERS}")
    if (layers := sum(stage.layers for stage in stages)) > MOST_LAYERS:
        raise routepack.InvalidInput(f"stages: found {layers} layers, wanted at most {MOST_LAYERS}")
    return stages


def _stages_of(records: Sequence[Record], declared: Sequence[DenseStage] | None) -> list[DenseStage]:
    stages = list(declared or ())
    names = [stage.name for stage in stages]
    for stage in stages:
        if names.count(stage.name) > 1:
            raise routepack.InvalidInput(f"stage {shown(stage.name)}: found twice, wanted every name once")
        if stage.layers < 1:
            raise routepack.InvalidInput(f"stage {shown(stage.name)}: found {stage.layers} layers, wanted 1 or more")
    found: dict[str, Record] = {}
    for record in records:
        if record.kind == "attention" and record.stage is not None:
            first = found.setdefault(record.stage, record)
            if stages and record.stage not in names:
                record.fail("stage", shown(record.stage), f"one that was declared: {', '.join(names)}")
            if not stages and record.layers != first.layers:
                record.fail(
                    "layers",
                    str(record.layers),
                    f"{first.layers} as in {first.where}, or --stage {record.stage}:LAYERS",
                )
    if stages:
        return stages
    if found:
        return [DenseStage(name, record.layers or 1) for name, record in found.items()]
    rows = [record for record in records if record.kind == "row"]
    for record in rows:
        if record.timed_layers != rows[0].timed_layers:
            record.fail("layers", str(record.timed_layers), f"{rows[0].timed_layers} as in {rows[0].where}, or --stage")
    return [DenseStage("dense", rows[0].timed_layers or 1)] if rows else []


def all_terms(stages: Sequence[DenseStage]) -> list[str]:
    """Names of everything that can be found, as the timing file orders them."""
    dense = [name for stage in stages for name in (stage.token, stage.pair)]
    return [EXPERT, ACTIVE, EXCHANGE, EXCHANGE_FIXED, *dense, ROW, STEP]


def kept_terms(stages: Sequence[DenseStage], without: Sequence[str]) -> list[str]:
    """All terms but those left out; a name stands for everything below it, `all_to_all` for both of its terms.

    :raises InvalidInput: for a name of nothing, and for expert.token, which is the unit of costs
    """
    kept = all_terms(stages)
    for name in without:
        hit = [term for term in all_terms(stages) if term == name or term.startswith(f"{name}.")]
        if not hit:
            raise routepack.InvalidInput(f"without: found {shown(name)}, wanted one of {', '.join(all_terms(stages))}")
        if EXPERT in hit:
            raise routepack.InvalidInput(f"without: found {EXPERT}, wanted another term: it is the unit of a cost file")
        kept = [term for term in kept if term not in hit]
    return kept


@dataclass(frozen=True)
class _Group:
    """Phases of a record in which the slowest of several candidates counts: values [phases, candidates, terms]."""

    terms: tuple[int, ...]
    values: Array


class Design:
    """The records as regressors. Which candidate is the slowest depends on the coefficients."""

    def __init__(
        self, records: Sequence[Record], stages: Sequence[DenseStage], terms: Sequence[str], *, tile: int = 1
    ) -> None:
        self.records, self.stages, self.terms, self.tile = list(records), list(stages), list(terms), tile
        self._at = {name: k for k, name in enumerate(self.terms)}
        self.seconds: Array = np.array([record.seconds for record in records], dtype=np.float64)
        self._fixed = np.zeros((len(records), len(self.terms)))
        self._groups = [self._open_choices(i, self._read(i, record)) for i, record in enumerate(self.records)]
        highest = self._fixed.copy()
        for i, groups in enumerate(self._groups):
            for group in groups:
                highest[i, list(group.terms)] += group.values.max(axis=1).sum(axis=0)
        for record, line in zip(self.records, highest):
            if not line.any():
                record.fail("values", "only zeros for the terms that are kept", "something that takes time")
        self.highest: Array = highest  #: [records, terms] every term at its own slowest candidate

    def columns(self, coefficients: Array) -> tuple[Array, bytes]:
        """Regressors [records, terms] under the choice of slowest candidates, and that choice."""
        # A hair of every term decides between candidates that terms of 0 leave equal.
        peaks = self.highest.max(axis=0, initial=0.0)
        hair = 1e-12 * float(np.median(self.seconds)) / np.where(peaks > 0.0, peaks, 1.0)
        weights = np.maximum(coefficients, hair)
        regressors, choice = self._fixed.copy(), []
        for i, groups in enumerate(self._groups):
            for group in groups:
                slowest = (group.values @ weights[list(group.terms)]).argmax(axis=1)
                regressors[i, list(group.terms)] += group.values[np.arange(len(slowest)), slowest].sum(axis=0)
                choice.append(slowest.astype(np.int32).tobytes())
        return regressors, b"".join(choice)

    def _has(self, *terms: str) -> bool:
        return any(term in self._at for term in terms)

    def _read(self, i: int, record: Record) -> list[_Group]:
        groups: list[_Group | None] = []
        if record.kind == "step":
            self._add(i, STEP, 1.0)
        if record.kind == "row":
            self._add(i, ROW, 1.0)
            groups += [self._cells(record, stage, 1.0) for stage in self.stages]
        if record.kind == "attention":
            (stage,) = (stage for stage in self.stages if stage.name == record.stage)
            groups.append(self._cells(record, stage, (record.layers or 1) / stage.layers))
        if record.kind in ("row", "experts"):
            groups.append(self._experts(record))
        if record.kind in ("row", "all_to_all"):
            if self._has(EXCHANGE):
                self._add(i, EXCHANGE, self._exchange(record))
            if self._has(EXCHANGE_FIXED):
                if record.timed_layers is None:
                    record.fail("layers", "none", f"the number of MoE layers, or {EXCHANGE_FIXED} left out")
                self._add(i, EXCHANGE_FIXED, float(record.timed_layers))
        return [group for group in groups if group is not None]

    def _open_choices(self, i: int, groups: list[_Group]) -> list[_Group]:
        """The groups with more than one candidate; the others become fixed regressors."""
        for group in groups:
            if group.values.shape[1] == 1:
                self._fixed[i, list(group.terms)] += group.values[:, 0].sum(axis=0)
        return [group for group in groups if group.values.shape[1] > 1]

    def _add(self, i: int, term: str, value: float) -> None:
        if term in self._at:
            self._fixed[i, self._at[term]] += value

    def _choose(self, values: Array, names: Sequence[str]) -> _Group | None:
        """values [phases, candidates, names] without the terms that are left out."""
        kept = [k for k, name in enumerate(names) if name in self._at]
        return _Group(tuple(self._at[names[k]] for k in kept), values[:, :, kept]) if kept else None

    def _cells(self, record: Record, stage: DenseStage, share: float) -> _Group | None:
        if not self._has(stage.token, stage.pair):
            return None
        if record.tokens is None:
            record.fail("tokens", "none", f"Σt of every cell, or stage.{stage.name} left out")
        squares = record.squares
        if squares is None:
            if self._has(stage.pair):
                record.fail("squares", "none", f"Σt² of every cell, or {stage.pair} left out")
            squares = (0.0,) * len(record.tokens)
        values = share * np.stack([np.array(record.tokens), np.array(squares)], axis=1)
        return self._choose(values[np.newaxis], (stage.token, stage.pair))

    def _experts(self, record: Record) -> _Group | None:
        """[layers, ranks, (W, n)], or one candidate that was reduced before."""
        if record.expert_loads is not None:
            rounded = np.ceil(record.expert_loads / self.tile) * self.tile
            active = (record.expert_loads > 0.0).sum(axis=2)
            return self._choose(np.stack([rounded.sum(axis=2), active], axis=2), (EXPERT, ACTIVE))
        if record.loads is None and record.expert_peak is None:
            record.fail("loads", "none", "loads, expert_loads or expert_peak")
        if record.loads is not None and self.tile > 1:
            record.fail("loads", "loads of ranks", f"expert_loads, to round them up to tiles of {self.tile}")
        if self._has(ACTIVE) and record.active_experts is None:
            record.fail("active_experts", "none", f"expert_loads or active_experts, or {ACTIVE} left out")
        if record.loads is not None:
            peak = float(record.loads.max(axis=1).sum())
        else:
            peak = float(record.expert_peak or 0.0)
        return self._choose(np.array([[[peak, record.active_experts or 0.0]]]), (EXPERT, ACTIVE))

    def _exchange(self, record: Record) -> float:
        """Σ_l max_p max(sent, received)."""
        if record.all_to_all_peak is not None:
            return record.all_to_all_peak
        if record.sent is not None and record.received is not None:
            return float(np.maximum(record.sent, record.received).max(axis=1).sum())
        received = record.loads if record.expert_loads is None else record.expert_loads.sum(axis=2)
        wanted = f"sent and received, or all_to_all_peak, or {EXCHANGE} left out"
        if received is None or not record.tokens:
            record.fail("all_to_all_peak", "none", wanted)
        ranks, cells = received.shape[1], len(record.tokens)
        if ranks % cells != 0:
            record.fail("tokens", f"{cells} cells over {ranks} ranks, so that nobody knows who sends", wanted)
        # Every token is routed to as many experts as any other, and the ranks of a cell share its tokens.
        share = max(record.tokens) / max(sum(record.tokens), 1.0) * cells / ranks
        return float(np.maximum(received.max(axis=1), received.sum(axis=1) * share).sum())
