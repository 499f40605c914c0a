# SPDX-License-Identifier: Apache-2.0
"""The windows of the macro-benchmarks, with the topology, cap and costs that each is planned for."""

import dataclasses
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

COSTS = {
    "tiny": [("kda", 100.0, 0.0), ("mla", 60.0, 200.0)],
    "flash-1": [("kda", 150.0, 0.0), ("mla", 60.0, 200.0)],
    "flash-2": [("kda", 300.0, 0.0), ("mla", 120.0, 400.0)],
    "full": [("full", 400.0, 1500.0)],
}


@dataclasses.dataclass
class Case:
    """A window file and how to plan it."""

    name: str
    window: pathlib.Path
    options: list[str]


def cost_file(folder: pathlib.Path, name: str) -> pathlib.Path:
    path = folder / f"{name}.toml"
    stages = "".join(f'[[stage]]\nname = "{stage}"\nalpha = {alpha}\nbeta = {beta}\n' for stage, alpha, beta in COSTS[name])
    path.write_text("expert = 1.0\n" + stages)
    return path


def generated(routepack: pathlib.Path, folder: pathlib.Path, name: str, *recipe: str) -> pathlib.Path:
    path = folder / f"{name}.safetensors"
    if not path.exists():
        subprocess.run([routepack, "generate", *recipe, "-o", path], check=True, capture_output=True)
    return path


def options(dp: int, ep: int, cap: int, cost: pathlib.Path, *more: str) -> list[str]:
    return ["--dp", str(dp), "--ep", str(ep), "--cap", str(cap), "--cost", str(cost), *more]


def cases(routepack: pathlib.Path, folder: pathlib.Path) -> list[Case]:
    """The real windows, presets up to 1,024 samples, and one window of 4,096."""

    def preset(name, model, lengths, prompts, *, dp, ep, cap, cost, more=(), seed=1):
        window = generated(routepack, folder, f"{model}-{lengths}-{prompts}-{seed}", "--model", model, "--lengths", lengths,
                           "--prompts", str(prompts), "--rollouts", "8", "--seed", str(seed))
        return Case(name, window, options(dp, ep, cap, cost_file(folder, cost), *more))

    gptoss = EXAMPLES / "windows" / "gptoss20b-mmlu-354.safetensors"
    mixtral = EXAMPLES / "windows" / "mixtral-mmlu-512.safetensors"
    return [
        Case("gptoss20b-mmlu-354", gptoss, options(8, 8, 2048, EXAMPLES / "gptoss20b.toml")),
        Case("gptoss20b-mmlu-354 EP 16", gptoss, options(16, 16, 2048, EXAMPLES / "gptoss20b.toml")),
        Case("mixtral-mmlu-512", mixtral, options(4, 4, 8192, EXAMPLES / "mixtral8x7b.toml")),
        preset("ling-3.0-tiny 512", "ling-3.0-tiny", "gsm8k", 64, dp=8, ep=8, cap=8192, cost="tiny"),
        preset("ling-3.0-flash 512", "ling-3.0-flash", "math", 64, dp=16, ep=16, cap=8192, cost="flash-1"),
        preset("ling-3.0-flash 512, 2 shards", "ling-3.0-flash", "math", 64, dp=16, ep=8, cap=8192, cost="flash-2"),
        preset("the same, sync row", "ling-3.0-flash", "math", 64, dp=16, ep=8, cap=8192, cost="flash-2", more=["--sync", "row"]),
        preset("qwen3-30b-a3b mixed 1024", "qwen3-30b-a3b", "mixed", 128, dp=16, ep=16, cap=16384, cost="full"),
        preset("qwen3-30b-a3b math 4096", "qwen3-30b-a3b", "math", 512, dp=16, ep=8, cap=16384, cost="full"),
    ]


def plan(routepack: pathlib.Path, case: Case, *more: str, out: pathlib.Path) -> dict:
    """One run of `routepack plan --json`."""
    done = subprocess.run([routepack, "plan", case.window, *case.options, "-o", out, "--json", *more], check=True,
                          capture_output=True)
    return json.loads(done.stdout)
