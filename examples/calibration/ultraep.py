#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits two publicly measured models, predicts the third: UltraEP's figure 11 (ultraep.csv, README.md).

Usage: ultraep.py [--sequence TOKENS]. Needs routepack[calibrate].
"""

from __future__ import annotations

import argparse
import csv
import pathlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from routepack.calibrate import Calibration, DenseStage, Record, Unidentifiable, calibrate

HERE = pathlib.Path(__file__).parent
STAGES = [DenseStage("dense", 1)]
NEVER = ("stage.dense.pair", "expert.active", "all_to_all.fixed", "fixed")  # a figure of means cannot show them
EXCHANGE = "all_to_all.token"


@dataclass(frozen=True)
class Work:
    """Of one token, forward and backward: FLOP beside the routed experts and in them, bytes of all-to-all."""

    dense: float
    routed: float
    exchanged: float


def work_of(model: str, sequence: int) -> Work:
    """From the published configurations; formulas in docs/model.md. A token costs 6 FLOP per weight that it meets."""
    if model == "glm-4.5-air":
        h, layers, moe, experts, width, vocabulary = 4096, 46, 45, 128, 1408, 151552
        attention = 2 * h * 96 * 128 + 2 * h * 8 * 128  # queries and output, keys and values
        others = moe * 3 * h * 1408 + 1 * 3 * h * 10944  # shared experts, the dense layer
        seen = 96 * (128 + 128)  # widths of a key and a value, over all heads
    elif model == "qwen3-235b-a22b":
        h, layers, moe, experts, width, vocabulary = 4096, 94, 94, 128, 1536, 151936
        attention = 2 * h * 64 * 128 + 2 * h * 4 * 128
        others = 0
        seen = 64 * (128 + 128)
    else:
        h, layers, moe, experts, width, vocabulary = 7168, 61, 58, 256, 2048, 129280
        attention = 1536 * (h + 128 * 192) + h * (512 + 64) + 512 * 128 * 256 + 128 * 128 * h  # latent
        others = moe * 3 * h * 2048 + 3 * 3 * h * 18432
        seen = 128 * (192 + 128)
    weights = layers * attention + moe * h * experts + others + h * vocabulary
    scores = 3 * 2 * seen * sequence / 2 * layers  # a token sees half of the sequence
    return Work(6.0 * weights + scores, 6.0 * 8 * 3 * h * width * moe, 4.0 * h * 2 * 8 * moe)


@dataclass(frozen=True)
class Point:
    """One bar of the figure."""

    model: str
    method: str
    rho: float
    seconds: float  #: of one token on one GPU
    work: Work

    def record(self) -> Record:
        """A «row» of one mean token: work in GFLOP and kB, the busiest rank has rho times the mean."""
        work = self.work
        return Record(
            "row",
            self.seconds,
            where=f"{self.model} {self.method}",
            tokens=(work.dense / 1e9,),
            expert_peak=work.routed / 1e9 * self.rho,
            all_to_all_peak=work.exchanged / 1e3 * self.rho,
        )


def points(sequence: int) -> list[Point]:
    with open(HERE / "ultraep.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    found = []
    for line in lines:
        work = work_of(line["model"], sequence)
        seconds = (work.dense + work.routed) / (float(line["tflops"]) * 1e12)
        found.append(Point(line["model"], line["method"], float(line["rho"]), seconds, work))
    return found


def fitted(known: list[Point]) -> tuple[Calibration, str]:
    """With a term for all-to-all where the points can tell it; what was said when they cannot."""
    records = [point.record() for point in known]
    try:
        return calibrate(records, capacity=1, stages=STAGES, without=NEVER), ""
    except Unidentifiable as error:
        refused = str(error).split("; what would help")[0]
    return calibrate(records, capacity=1, stages=STAGES, without=(*NEVER, EXCHANGE), keep_wide=True), refused


def rule(rho: float) -> float:
    """Time over ideal time, by a straight line through all points with rho up to 1.6."""
    return 1.064 + 0.68 * (rho - 1.0)


def line_through(known: list[Point]) -> tuple[float, float]:
    """(a, b) of time over ideal time = a + b·(rho − 1), over points with rho up to 1.6, ideal ones aside."""
    ideal = {point.model: point.seconds for point in known if point.method == "ideal"}
    chosen = [point for point in known if point.rho <= 1.6 and point.method != "ideal"]
    x = [point.rho - 1.0 for point in chosen]
    y = [point.seconds / ideal[point.model] for point in chosen]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((u - mean_x) * (v - mean_y) for u, v in zip(x, y)) / sum((u - mean_x) ** 2 for u in x)
    return mean_y - slope * mean_x, slope


@dataclass(frozen=True)
class Errors:
    """Predicted over measured, less 1."""

    time: float  #: of one token
    slowdown: float  #: of the time over the model's own ideal time
    line: float  #: the same, by a line through the two other models
    rule: float  #: the same, by the line through all three


def rotations(sequence: int) -> Iterator[tuple[str, Calibration, str, list[tuple[Point, Errors]]]]:
    """(model left out, fit to the others, what was refused, its points)."""
    everything = points(sequence)
    for model in dict.fromkeys(point.model for point in everything):
        known = [point for point in everything if point.model != model]
        (found, refused), (a, b) = fitted(known), line_through(known)
        rest = [point for point in everything if point.model == model]
        predicted = found.predict([point.record() for point in rest])
        ideal = next(k for k, point in enumerate(rest) if point.method == "ideal")
        lines = []
        for point, seconds in zip(rest, predicted):
            slower = point.seconds / rest[ideal].seconds
            errors = Errors(
                time=seconds / point.seconds - 1.0,
                slowdown=seconds / predicted[ideal] / slower - 1.0,
                line=(a + b * (point.rho - 1.0)) / slower - 1.0,
                rule=rule(point.rho) / slower - 1.0,
            )
            lines.append((point, errors))
        yield model, found, refused, lines


def summary(errors: list[float]) -> str:
    return f"{100 * sum(map(abs, errors)) / len(errors):.1f} / {100 * max(map(abs, errors)):.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sequence", type=int, default=8192, help="tokens of a sequence; default 8192")
    sequence = parser.parse_args().sequence
    low: list[tuple[float, ...]] = []
    every: list[tuple[float, ...]] = []
    for model, found, refused, lines in rotations(sequence):
        print(f"{model}, from the other two")
        if refused:
            print(f"  with all-to-all: {refused}")
        for term in found.terms:
            unit = {"expert.token": "GFLOP", "all_to_all.token": "kB"}.get(term.name, "GFLOP")
            print(f"  {term.name:<18} {term.value:.3g} s per {unit} [{term.low:.3g}, {term.high:.3g}]")
        print("  method       rho  TFLOP/s  fitted     time  slowdown    line    rule")
        for point, errors in lines:
            tflops = (point.work.dense + point.work.routed) / point.seconds / 1e12
            shown = [f"{100 * error:+5.1f} %" for error in astuple(errors)]
            given = f"{point.rho:4.2f}  {tflops:7.1f} {tflops / (1.0 + errors.time):7.1f}"
            print(f"  {point.method:<11} {given}  {shown[0]}   {shown[1]} {shown[2]} {shown[3]}")
            every.append(astuple(errors))
            if point.rho <= 1.6 and point.method != "ideal":
                low.append(astuple(errors))
        print()
    print(
        f"mean / worst absolute error{'':<15}" + "".join(f"{name:>16}" for name in ("time", "slowdown", "line", "rule"))
    )
    for name, chosen in (("all points", every), ("rho up to 1.6, ideal points aside", low)):
        print(f"  {name:<40}" + "".join(f"{summary([line[k] for line in chosen]):>16}" for k in range(4)))


if __name__ == "__main__":
    main()
