# SPDX-License-Identifier: Apache-2.0
"""Scenario files: which windows, which model and machine, which strategies. docs/evaluate.md describes every key."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import routepack
from routepack.evaluate import toml

LENGTHS = ("gsm8k", "math", "reasoning", "agentic", "mixed")
PLACEMENTS = ("identity", "keep", "lpt", "sticky", "joint")
EFFORTS = ("paper", "fast", "default", "quality")
#: Columns of a name, steps of a seed, strategies, size of an axis, milliseconds of a step, bytes of a parameter.
MOST_NAME, MOST_STEPS, MOST_STRATEGIES, MOST_RANKS, MOST_MS, MOST_PARAMETER = 40, 10_000, 32, 65_536, 1e9, 1_000_000
#: Options of compare that come without a value.
_FLAGS = ("--equal-count", "--add-dummies", "--two-batches")
#: Those that are set already, by other keys or because the answer is read here.
_SET = tuple(
    "--placements --strategies --baseline --steps --params --list --json --csv --help --version --dp --ep --tp --cp"
    " --etp --pp --shards --cap --sync --model --device --recompute --current --ranks-per-node --weight-bytes"
    " --optimizer-bytes --optimizer-shards --seed --threads --effort --moves".split()
)
#: What `--quick` leaves of a scenario.
QUICK_STEPS, QUICK_PROMPTS, QUICK_ROLLOUTS, QUICK_DRAW = 3, 8, 4, 64


@dataclass(frozen=True)
class Windows:
    """Where windows come from: a generated run for each seed, or files, or draws of samples from files."""

    lengths: str = ""
    domain: str = ""
    prompts: int = 64
    rollouts: int = 8
    files: tuple[Path, ...] = ()
    draw: int = 0  #: samples of each step, drawn from the files without repetition; 0: every file is a step
    steps: int = 1
    seeds: tuple[int, ...] = (0,)
    truncate: bool = False

    def as_dict(self) -> dict[str, Any]:
        if self.files:
            drawn = {"draw": self.draw, "steps": self.steps, "seeds": list(self.seeds)} if self.draw else {}
            return {"files": [path.name for path in self.files], **drawn, "truncate": self.truncate}
        domain = {"domain": self.domain} if self.domain else {}
        return {
            **{"lengths": self.lengths, **domain, "prompts": self.prompts, "rollouts": self.rollouts},
            **{"steps": self.steps, "seeds": list(self.seeds), "truncate": self.truncate},
        }


@dataclass(frozen=True)
class Strategy:
    """A placement and a packer of `routepack compare`, with options of the planner."""

    name: str
    placement: str
    packer: str
    effort: str = ""
    moves: str = ""
    options: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"placement": self.placement, "strategy": self.packer, "arguments": self.arguments()}

    def arguments(self) -> list[str]:
        """Of `routepack compare`, without the windows."""
        combination = f"{self.placement}/{self.packer}"
        arguments = ["--placements", self.placement, "--strategies", self.packer, "--baseline", combination]
        arguments += ["--effort", self.effort] if self.effort else []
        arguments += ["--moves", self.moves] if self.moves else []
        return [*arguments, *self.options]


#: Today's, placement alone, the first paper's pipeline, and ours.
FOUR = (
    Strategy("baseline", "identity", "dp-local-ffd"),
    Strategy("lpt", "lpt", "dp-local-ffd"),
    Strategy("paper", "lpt", "routepack", effort="paper"),
    Strategy("routepack", "joint", "routepack", effort="default"),
)


@dataclass(frozen=True)
class Published:
    """Figures of a publication, to stand beside ours. Fractions, not percent."""

    source: str
    gains: dict[str, tuple[float, float]] = field(default_factory=dict)  #: over the baseline, least and most
    throughput: dict[str, tuple[float, float]] = field(default_factory=dict)  #: tokens/s, mean and sd
    p10: dict[str, float] = field(default_factory=dict)  #: tokens/s
    packing: dict[str, float] = field(default_factory=dict)  #: changes, of PACKING
    ep_efficiency: tuple[float, float] | None = None  #: before and after packing

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "gains": {name: list(gain) for name, gain in self.gains.items()},
            "throughput": {name: list(values) for name, values in self.throughput.items()},
            "p10": self.p10,
            "packing": self.packing,
            "ep_efficiency": None if self.ep_efficiency is None else list(self.ep_efficiency),
        }


#: Metrics whose change by packing alone is shown, as in the paper's table 4.
PACKING = ("expert_peak_sum", "tail_peak", "attention", "joint")


@dataclass(frozen=True)
class Topology:
    dp: int
    ep: int
    tp: int = 1
    cp: int = 1
    etp: int = 1
    pp: int = 1

    @property
    def shards(self) -> int:
        """EDP shards: communicators of a pipeline stage."""
        return self.dp * self.tp * self.cp // (self.ep * self.etp)

    def arguments(self) -> list[str]:
        return [text for name, size in dataclasses.asdict(self).items() for text in (f"--{name}", str(size))]


@dataclass(frozen=True)
class Scenario:
    path: Path
    name: str
    description: str
    model: str
    windows: Windows
    topology: Topology
    cap: int
    sync: str
    device: Path | None
    device_name: str
    recompute: bool  #: every layer's forward pass again before its backward pass
    ranks_per_node: int  #: EP ranks; 0: as compare takes it
    state_ms: float  #: what preparing the state of a step takes beside moving experts
    weight_bytes: int  #: of a parameter
    optimizer_bytes: int
    optimizer_shards: int  #: replicas that share the optimizer's state
    strategies: tuple[Strategy, ...]
    baseline: str
    packing: tuple[str, str] | None  #: strategies of one placement, before and after packing
    published: Published | None

    @property
    def bytes_per_parameter(self) -> float:
        """State of a parameter that one replica moves."""
        return self.weight_bytes + self.optimizer_bytes / self.optimizer_shards

    def strategy(self, name: str) -> Strategy:
        return next(strategy for strategy in self.strategies if strategy.name == name)

    def with_steps(self, steps: int) -> Scenario:
        """The same with so many steps for every seed; window files that are steps themselves stay as they are."""
        if self.windows.files and not self.windows.draw:
            return self
        return dataclasses.replace(self, windows=dataclasses.replace(self.windows, steps=steps))

    def quick(self) -> Scenario:
        """So little of it that it takes a second: to see whether it runs, not what comes out."""
        windows = self.windows
        small = dataclasses.replace(
            windows,
            prompts=min(windows.prompts, QUICK_PROMPTS),
            rollouts=min(windows.rollouts, QUICK_ROLLOUTS),
            steps=min(windows.steps, QUICK_STEPS),
            draw=min(windows.draw, QUICK_DRAW),
            seeds=windows.seeds[:1],
        )
        return dataclasses.replace(self, windows=small)


def load_scenario(path: Path) -> Scenario:
    """Reads a scenario file; paths in it are relative to it.

    :raises InvalidInput: for a missing, unknown or contradicting key: file, key, found, wanted
    """
    file = toml.load(path)
    name = file.text("name")
    if not re.fullmatch(rf"[a-z0-9][a-z0-9.-]{{0,{MOST_NAME - 1}}}", name):
        raise file.wrong("name", name, f"small letters, digits, dots and dashes, at most {MOST_NAME}")
    description = file.text("description", lines=True)
    model = _word(file, "model")
    device, device_name = _device(file)
    recompute = file.flag("recompute", False)
    if recompute and device is None:
        raise file.wrong("recompute", True, "a device beside it")
    cap = file.integer("cap")
    sync = file.text("sync", "step", among=("step", "row"))
    windows = _windows(file.table("windows"), path)
    topology = _topology(file.table("topology"))
    moves = file.table("moves")
    ranks_per_node = moves.integer("ranks_per_node", 0, most=MOST_RANKS)
    state_ms = moves.number("state_ms", 0.0, least=0.0, most=MOST_MS)
    weight_bytes = moves.integer("weight_bytes", 2, most=MOST_PARAMETER)
    optimizer_bytes = moves.integer("optimizer_bytes", 12, least=0, most=MOST_PARAMETER)
    optimizer_shards = moves.integer("optimizer_shards", topology.shards)
    moves.close(("ranks_per_node", "state_ms", "weight_bytes", "optimizer_bytes", "optimizer_shards"))
    strategies = tuple(_strategy(table) for table in file.tables("strategies")) or FOUR
    names = [strategy.name for strategy in strategies]
    if len(set(names)) < len(names) or len(names) < 2:
        raise file.wrong("strategies", f"no two different: {', '.join(names)}", "at least two, each name once")
    if len(names) > MOST_STRATEGIES:
        raise file.wrong("strategies", len(names), f"at most {MOST_STRATEGIES}")
    baseline = file.text("baseline", names[0], among=names)
    packing = _pair(file, strategies)
    published = _published(file.table("published"), names) if "published" in file else None
    known = ("name", "description", "model", "device", "recompute", "cap", "sync", "windows", "topology", "moves")
    file.close((*known, "strategies", "baseline", "packing", "published"))
    return Scenario(
        path=path,
        name=name,
        description=description,
        model=model,
        windows=windows,
        topology=topology,
        cap=cap,
        sync=sync,
        device=device,
        device_name=device_name,
        recompute=recompute,
        ranks_per_node=ranks_per_node,
        state_ms=state_ms,
        weight_bytes=weight_bytes,
        optimizer_bytes=optimizer_bytes,
        optimizer_shards=optimizer_shards,
        strategies=strategies,
        baseline=baseline,
        packing=packing,
        published=published,
    )


def _word(table: toml.Table, key: str) -> str:
    """A name that the command line knows: no option, no list."""
    word = table.text(key)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", word):
        raise table.wrong(key, word, "a name of letters, digits, dots, dashes")
    return word


def _device(file: toml.Table) -> tuple[Path | None, str]:
    """The device file and the name of the device. Without one there are no seconds."""
    if "device" not in file:
        return None, ""
    path = file.path.parent / file.text("device")
    return path, toml.load(path).text("name", most=MOST_NAME)


def _windows(table: toml.Table, path: Path) -> Windows:
    truncate = table.flag("truncate", False)
    if "files" in table:
        files = tuple(path.parent / name for name in table.texts("files"))
        for file in files:
            if not os.path.isfile(file):
                raise routepack.IoError(f"{file}: cannot read: no such file (windows.files of {path})")
        if "draw" not in table:
            table.close(("files", "draw", "truncate"))
            return Windows(files=files, steps=len(files), truncate=truncate)
        draw, steps = table.integer("draw"), table.integer("steps", most=MOST_STEPS)
        seeds = table.integers("seeds", (0,))
        table.close(("files", "draw", "steps", "seeds", "truncate"))
        return Windows(files=files, draw=draw, steps=steps, seeds=seeds, truncate=truncate)
    windows = Windows(
        lengths=table.text("lengths", among=LENGTHS),
        domain=_word(table, "domain") if "domain" in table else "",
        prompts=table.integer("prompts", 64),
        rollouts=table.integer("rollouts", 8),
        steps=table.integer("steps", most=MOST_STEPS),
        seeds=table.integers("seeds", (0,)),
        truncate=truncate,
    )
    table.close(("lengths", "domain", "prompts", "rollouts", "steps", "seeds", "truncate", "files", "draw"))
    return windows


def _topology(table: toml.Table) -> Topology:
    names = ("dp", "ep", "tp", "cp", "etp", "pp")
    sizes = {name: table.integer(name, None if name in ("dp", "ep") else 1, most=MOST_RANKS) for name in names}
    table.close(names)
    topology = Topology(**sizes)
    if topology.dp * topology.tp * topology.cp % (topology.ep * topology.etp):
        raise table.wrong("dp", topology.dp, "dp·tp·cp to be a multiple of ep·etp")
    return topology


def _strategy(table: toml.Table) -> Strategy:
    moves = table.text("moves") if "moves" in table else ""
    if moves.startswith("-"):
        raise table.wrong("moves", moves, "a limit as for routepack plan, such as 0.05")
    strategy = Strategy(
        name=table.text("name", most=MOST_NAME),
        placement=table.text("placement", among=PLACEMENTS),
        packer=_word(table, "packer"),
        effort=table.text("effort", "default", among=EFFORTS) if "effort" in table else "",
        moves=moves,
        options=_options(table),
    )
    table.close(("name", "placement", "packer", "effort", "moves", "options"))
    return strategy


def _options(table: toml.Table) -> tuple[str, ...]:
    """Options of compare with their values. Anything else there would be taken as a window."""
    options = table.texts("options", ())
    takes_value = False
    for k, text in enumerate(options):
        key = f"options[{k}]"
        name, equals, _ = text.partition("=")
        if text.startswith("--"):
            if name in _SET or not re.fullmatch(r"--[a-z][a-z0-9-]*", name):
                raise table.wrong(key, text, "an option of compare that no key of the scenario and nothing else sets")
            takes_value = not equals and name not in _FLAGS
        elif takes_value:
            takes_value = False
        else:
            raise table.wrong(key, text, "an option (--…) or the value of the one before it")
    return options


def _pair(file: toml.Table, strategies: tuple[Strategy, ...]) -> tuple[str, str] | None:
    """Strategies that differ in packing alone; lpt and paper where nothing is said and both are there."""
    names = [strategy.name for strategy in strategies]
    if "packing" not in file and not {"lpt", "paper"} <= set(names):
        return None
    pair = file.texts("packing", ("lpt", "paper"))
    if len(pair) != 2 or not set(pair) <= set(names):
        raise file.wrong("packing", ", ".join(pair), f"two of {', '.join(names)}: before and after packing")
    before, after = (next(s for s in strategies if s.name == name) for name in pair)
    if before.placement != after.placement:
        raise file.wrong("packing", f"no common placement: {before.placement} and {after.placement}", "the same")
    return before.name, after.name


def _published(table: toml.Table, names: list[str]) -> Published:
    source = table.text("source")

    def by_strategy(key: str) -> toml.Table:
        values = table.table(key)
        for name in values.keys():
            if name not in names:
                raise values.wrong(name, "no such strategy", f"one of {', '.join(names)}")
        return values

    gains, throughput, p10 = by_strategy("gains"), by_strategy("throughput"), by_strategy("p10")
    read_gains = {name: _two(gains.range(name)) for name in gains.keys()}
    read_throughput = {name: _two(throughput.numbers(name, 2, least=0.0)) for name in throughput.keys()}
    read_p10 = {name: p10.number(name, least=0.0) for name in p10.keys()}
    packing = table.table("packing")
    changes = {key: packing.number(key) for key in PACKING if key in packing}
    efficiency = _two(packing.numbers("ep_efficiency", 2)) if "ep_efficiency" in packing else None
    packing.close((*PACKING, "ep_efficiency"))
    table.close(("source", "gains", "throughput", "p10", "packing"))
    return Published(source, read_gains, read_throughput, read_p10, changes, efficiency)


def _two(values: tuple[float, ...]) -> tuple[float, float]:
    return values[0], values[1]
