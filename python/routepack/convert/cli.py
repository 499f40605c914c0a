# SPDX-License-Identifier: Apache-2.0
"""`routepack convert KIND IN… -o WINDOW`: the only module here that prints."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

import routepack
from routepack import _terminal
from routepack.convert import DEMANDS, KINDS, Converted, convert, slime_plan
from routepack.convert.errors import InvalidInput, shown
from routepack.convert.limits import Limits
from routepack.convert.options import Options, parse_numbers, read_map, with_model_config

_HELP = {
    "slime": "rollout dumps of slime (--save-debug-rollout-data)",
    "slime-train": "train dumps of slime (--save-debug-train-data); --plan-out writes the packing that slime used",
    "sglang": "SGLang responses as JSON lines",
    "vllm": "vLLM routed_experts, one array file per sample",
    "verl": "verl batches, padded or jagged",
    "nemo-rl": "NeMo RL: nrlre1 text in JSON lines, or batches",
    "areal": "AReaL: batches of its R3 branch, or responses",
    "skyrl": "SkyRL: wire payloads in JSON lines, or training batches",
    "arrays": "plain npy, npz or safetensors arrays",
    "megatron-trace": "Megatron-Core router traces (aggregate demand)",
    "sglang-recorder": "SGLang expert distribution recorder files (aggregate demand)",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidInput(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="routepack convert",
        description="Counts recorded routes into a window.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="kinds:\n" + "\n".join(f"  {name:<16} {_HELP[name]}" for name in (*KINDS, *DEMANDS)),
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("kind", metavar="KIND", choices=(*KINDS, *DEMANDS), help="what the files are (below)")
    add("inputs", metavar="IN", nargs="+", help="input files; their samples follow one another")
    add("-o", "--output", metavar="WINDOW", required=True, help="window file to write")
    add("--experts", type=int, metavar="E", help="routed experts per layer")
    add("--top-k", type=int, metavar="K", help="experts per token, where the file does not say")
    add("--num-layers", type=int, metavar="N", help="decoder layers, dense ones included")
    add("--layers", metavar="LIST", help="global numbers of the MoE layers, such as 3-60 or 0,2,4")
    add("--model-config", metavar="FILE", help="config.json of the model: fills the four options above")
    add("--model", metavar="NAME", help="name to keep in the window")
    add(
        "--missing",
        choices=("leave-out", "spread", "refuse"),
        default="leave-out",
        help="rows without a recorded route: leave out (default), add what the sample's others add on average, refuse",
    )
    add(
        "--physical-to-logical",
        metavar="FILE",
        help="the ids are slots: JSON map, plan or placement to bring them back",
    )
    add("--rows", choices=("len", "len-1"), help="rows of a sample of t tokens, where the file does not give t")
    add("--align", choices=("sequence", "response"), default="sequence", help="what row 0 belongs to (skyrl)")
    add(
        "--join",
        metavar="KEY",
        help="lines with equal KEY (dotted path) are segments of one sample (sglang, nemo-rl, skyrl)",
    )
    add("--rollout", metavar="FILE", help="rollout dump with the routes of a train dump (slime-train)")
    add("--step", metavar="LIST", help="optimizer step of a train dump; steps of a trace")
    add("--plan-out", metavar="PLAN", help="also write the packing that slime used as a plan (slime-train)")
    add("--ep", type=int, metavar="P", help="expert-parallel ranks of that plan")
    add("--shards", metavar="JSON", help="slots per EDP shard of that plan, such as [[0,2],[1,3]]; default one shard")
    add("--cap", type=int, metavar="C", help="token cap of that plan; default its fullest cell")
    add("--cost", metavar="FILE", help="cost file (TOML) of that plan")
    add(
        "--max-sample-bytes",
        type=int,
        metavar="N",
        help="refuse samples, lines and arrays above N bytes of routes (default 2 GiB)",
    )
    add("--json", action="store_true", help="the report as JSON")
    return parser


def _options(given: argparse.Namespace) -> Options:
    limits = Limits() if given.max_sample_bytes is None else Limits(sample=given.max_sample_bytes)
    if limits.sample < 1:
        raise InvalidInput(f"--max-sample-bytes: found {limits.sample}, wanted 1 or more")
    options = Options(
        experts=given.experts,
        top_k=given.top_k,
        num_layers=given.num_layers,
        layers=None if given.layers is None else parse_numbers(given.layers, "layers"),
        missing=given.missing,
        physical_to_logical=None if given.physical_to_logical is None else read_map(given.physical_to_logical),
        rows=given.rows,
        align=given.align,
        join=given.join,
        rollout=given.rollout,
        steps=None if given.step is None else parse_numbers(given.step, "step"),
        model=given.model,
        limits=limits,
    )
    return options if given.model_config is None else with_model_config(options, given.model_config)


def _plan_options(given: argparse.Namespace) -> slime_plan.PlanOptions:
    if given.kind != "slime-train" or len(given.inputs) != 1:
        raise InvalidInput("--plan-out: found another kind or several inputs, wanted slime-train with one train dump")
    if given.ep is None or given.cost is None:
        raise InvalidInput("--plan-out: found no --ep or no --cost, wanted both: the dump does not say them")
    shards: Any = None
    if given.shards is not None:
        try:
            shards = json.loads(given.shards)
        except (ValueError, RecursionError):
            shards = given.shards
        if not isinstance(shards, list) or not all(
            isinstance(shard, list) and all(type(slot) is int for slot in shard) for shard in shards
        ):
            raise InvalidInput(f"--shards: found {shown(given.shards)}, wanted a list of lists of slots")
    return slime_plan.PlanOptions(given.ep, routepack.CostModel.load(given.cost), shards, given.cap)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.abspath(one) == os.path.abspath(other)


def _run(given: argparse.Namespace) -> Converted:
    options = _options(given)
    how = None if given.plan_out is None else _plan_options(given)
    outputs = [path for path in (given.output, given.plan_out) if path is not None]
    inputs = [*given.inputs, *(path for path in (given.rollout, given.model_config, given.cost) if path is not None)]
    for i, output in enumerate(outputs):
        for other in (*inputs, *outputs[:i]):
            if _same_file(output, other):
                raise InvalidInput(f"{output}: found as an output and as another file, wanted different files")
    result = convert(given.kind, given.inputs, options)
    plan = None
    if how is not None:
        plan = slime_plan.plan(
            given.inputs[0], options, how,
            lengths=[int(t) for t in result.window.lengths], layers=result.report.layers, experts=result.report.experts,
            fingerprint=result.window.fingerprint,
        )  # fmt: skip
    result.window.save(given.output)
    if plan is not None:
        slime_plan.save(plan, given.plan_out)
    return result


def _table(result: Converted, output: str) -> str:
    report = asdict(result.report)
    words = {key: key.replace("_", " ") for key in report}
    width = max(map(len, words.values()))
    lines = [f"{words[key]:<{width}}  {value}" for key, value in report.items()]
    return "\n".join([f"{'window':<{width}}  {output}", *lines])


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 with one line on stderr."""
    try:
        given = _parser().parse_args(argv)
        with _terminal.Progress() as progress:
            files = f"{len(given.inputs):,} file{'s' if len(given.inputs) > 1 else ''}"
            progress.says(f"counting the routes of {files} into {given.output}")
            result = _run(given)
        text = json.dumps(asdict(result.report)) if given.json else _table(result, given.output)
        _terminal.output(text)
    except (ValueError, OSError) as error:
        message = " ".join(str(error).splitlines())
        print(f"routepack convert: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
