# SPDX-License-Identifier: Apache-2.0
"""From what frameworks record to a window: counts per sample, layer and expert instead of raw routes.

    from routepack.convert import Options, convert
    result = convert("slime", ["rollout_7.pt"], Options(experts=128, layers=tuple(range(48))))
    result.window.save("window.safetensors")

Every kind is a module with `read(path, options)`, an iterator of samples (or of demand, for aggregates) that holds the
raw routes of one sample at a time; `convert` counts them. `main` is the command line, `routepack convert`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import routepack
from routepack.convert import (
    areal,
    arrays,
    megatron_trace,
    nemo,
    sglang,
    sglang_recorder,
    skyrl,
    slime,
    slime_train,
    verl,
    vllm,
)
from routepack.convert.demand import aggregate
from routepack.convert.errors import InvalidInput, shown
from routepack.convert.limits import Limits
from routepack.convert.options import Options, Path
from routepack.convert.report import Report
from routepack.convert.sample import Demand, Sample
from routepack.convert.window import WindowMaker

__all__ = ["DEMANDS", "KINDS", "Converted", "Demand", "Limits", "Options", "Report", "Sample", "convert", "main"]

#: Readers of samples by the name of their kind.
KINDS: dict[str, Callable[[Path, Options], Iterator[Sample]]] = {
    "slime": slime.read,
    "slime-train": slime_train.read,
    "sglang": sglang.read,
    "vllm": vllm.read,
    "verl": verl.read,
    "nemo-rl": nemo.read,
    "areal": areal.read,
    "skyrl": skyrl.read,
    "arrays": arrays.read,
}
#: Readers of demand without sample identity.
DEMANDS: dict[str, Callable[[Path, Options], Iterator[Demand]]] = {
    "megatron-trace": megatron_trace.read,
    "sglang-recorder": sglang_recorder.read,
}


@dataclass(frozen=True)
class Converted:
    """The window, and what was found on the way to it."""

    window: routepack.Window
    report: Report


def convert(kind: str, paths: Sequence[Path], options: Options) -> Converted:
    """One window of all files, in their order.

    @raises FormatError, InvalidInput (ValueError), IoError (OSError): one line with file, sample, key, found, wanted

    >>> np.save("ids.npy", np.array([[[0, 2]], [[2, 1]]], dtype=np.int32))  # a sample of two tokens
    >>> convert("arrays", ["ids.npy"], Options(experts=4, rows="len")).window.counts.tolist()
    [[[1, 1, 2, 0]]]
    """
    if not paths:
        raise InvalidInput("found no input file, wanted at least one")
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if kind in DEMANDS:
        return Converted(
            *aggregate((demand for path in paths for demand in DEMANDS[kind](path, options)), options, where)
        )
    if kind not in KINDS:
        raise InvalidInput(f"kind: found {shown(kind)}, wanted one of {', '.join([*KINDS, *DEMANDS])}")
    maker = WindowMaker(options)
    for path in paths:
        for sample in KINDS[kind](path, options):
            maker.add(sample)
    return Converted(*maker.seal(where))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `routepack convert`; returns the exit status."""
    from routepack.convert.cli import main as command

    return command(argv)
