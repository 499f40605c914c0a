# SPDX-License-Identifier: Apache-2.0
"""Windows of a scenario as files: generated, given, or drawn from given ones; cut at the cap where it says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import routepack
from routepack.evaluate.program import Program
from routepack.evaluate.scenario import Scenario

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """Windows that follow each other: placements are carried from one to the next."""

    seed: int
    files: tuple[Path, ...]
    truncated: int  #: samples that were cut at the cap
    samples: int


class WindowFolder:
    """Makes windows in a folder, each set once however many scenarios share it."""

    def __init__(self, folder: Path, program: Program) -> None:
        self._folder = folder
        self._program = program
        self._made: dict[tuple[object, ...], tuple[Path, ...]] = {}

    def runs(self, scenario: Scenario) -> list[Run]:
        """One for every seed; one for files that are steps themselves."""
        windows = scenario.windows
        if windows.files and not windows.draw:
            return [self._prepared(scenario, 0, windows.files)]
        if windows.files:
            return [self._prepared(scenario, seed, self._drawn(scenario, seed)) for seed in windows.seeds]
        return [self._prepared(scenario, seed, self._generated(scenario, seed)) for seed in windows.seeds]

    def _new(self, key: tuple[object, ...]) -> Path:
        folder = self._folder / f"{len(self._made):04d}"
        folder.mkdir()
        self._made[key] = ()
        return folder

    def _generated(self, scenario: Scenario, seed: int) -> tuple[Path, ...]:
        windows = scenario.windows
        key = (scenario.model, windows.lengths, windows.domain, windows.prompts, windows.rollouts, windows.steps, seed)
        if key not in self._made:
            folder = self._new(key)
            options = ["--model", scenario.model, "--lengths", windows.lengths, "--seed", str(seed)]
            options += ["--domain", windows.domain] if windows.domain else []
            options += ["--prompts", str(windows.prompts), "--rollouts", str(windows.rollouts)]
            # With one step the output is a file.
            target = folder if windows.steps > 1 else folder / "step-0000.safetensors"
            options += ["--steps", str(windows.steps), "-o", str(target)]
            made = self._program.json("generate", *options)
            self._made[key] = tuple(Path(window["window"]) for window in made.get("windows", [made]))
        return self._made[key]

    def _drawn(self, scenario: Scenario, seed: int) -> tuple[Path, ...]:
        windows = scenario.windows
        key = (windows.files, windows.draw, windows.steps, seed)
        if key not in self._made:
            folder = self._new(key)
            sources = [routepack.Window.load(path) for path in windows.files]
            for path, source in zip(windows.files, sources):
                if source.samples < windows.draw:
                    most = f"at most the {source.samples} samples of {path}"
                    raise routepack.InvalidInput(f"{scenario.path}: windows.draw: found {windows.draw}, wanted {most}")
            files = []
            for step in range(windows.steps):
                source = sources[step % len(sources)]
                rng = np.random.default_rng([seed, step])
                chosen = rng.permutation(source.samples)[: windows.draw]
                files.append(folder / f"step-{step:04d}.safetensors")
                select(source, chosen).save(files[-1])
            self._made[key] = tuple(files)
        return self._made[key]

    def _prepared(self, scenario: Scenario, seed: int, files: tuple[Path, ...]) -> Run:
        """Cut at the cap where the scenario says so."""
        if not scenario.windows.truncate:
            return Run(seed, files, 0, sum(routepack.Window.load(path).samples for path in files))
        cut: list[Path] = []
        longer = samples = 0
        folder: Path | None = None
        for path in files:
            window = routepack.Window.load(path)
            samples += window.samples
            over = int((np.asarray(window.lengths) > scenario.cap).sum())
            longer += over
            if over:
                folder = folder or self._new((scenario.name, seed, "cut"))
                cut.append(folder / f"step-{len(cut):04d}.safetensors")  # files of two folders may share a name
                truncate(window, scenario.cap).save(cut[-1])
            else:
                cut.append(path)
        return Run(seed, tuple(cut), longer, samples)


def select(window: routepack.Window, samples: Ints) -> routepack.Window:
    """The samples at these positions, in this order."""

    def of(values: object) -> object:
        return None if values is None else np.ascontiguousarray(np.asarray(values)[samples])

    return routepack.Window.from_arrays(
        lengths=of(window.lengths),
        counts=of(window.counts),
        top_k=window.top_k,
        recorded=of(window.recorded),
        groups=of(window.groups),
        atomic=of(window.atomic),
        pad_counts=window.pad_counts,
        ids=of(window.ids),
        layers=window.layer_numbers or None,
        model=window.model or None,
    )


def truncate(window: routepack.Window, longest: int) -> routepack.Window:
    """Samples above `longest` tokens end there. A window holds sums over tokens and not the tokens, so counts shrink in
    proportion, rounded by largest remainders: what is cut is taken to be routed like what stays.
    """
    lengths = np.array(window.lengths, dtype=np.int64)
    counts = np.array(window.counts)
    recorded = np.array(lengths if window.recorded is None else window.recorded, dtype=np.int64)
    for i in np.flatnonzero(lengths > longest):
        recorded[i] = recorded[i] * longest // lengths[i]
        if window.recorded is None:
            totals = counts[i].sum(axis=1, dtype=np.int64) * longest // lengths[i]
        else:
            totals = np.broadcast_to(recorded[i] * window.top_k, counts.shape[1:2])
        counts[i] = shrink(counts[i], totals)
        lengths[i] = longest
    return routepack.Window.from_arrays(
        lengths=lengths.astype(np.int32),
        counts=counts,
        top_k=window.top_k,
        recorded=None if window.recorded is None else recorded.astype(np.int32),
        groups=window.groups,
        atomic=window.atomic,
        pad_counts=window.pad_counts,
        ids=window.ids,
        layers=window.layer_numbers or None,
        model=window.model or None,
    )


def shrink(counts: npt.NDArray[Any], totals: Ints) -> Ints:
    """Counts [L, E] in proportion to what they were, with these sums [L], by largest remainders.

    None grows beyond its own share rounded up, so no expert gets more tokens than there are.
    """
    shrunk = np.zeros(counts.shape, dtype=np.int64)
    for layer, (row, total) in enumerate(zip(counts.astype(np.int64), totals)):
        whole = int(row.sum())
        if whole == 0:
            continue
        shrunk[layer], remainder = np.divmod(row * int(total), whole)
        missing = int(total) - int(shrunk[layer].sum())
        shrunk[layer, np.argsort(-remainder, kind="stable")[:missing]] += 1
    return shrunk
