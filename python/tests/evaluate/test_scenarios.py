# SPDX-License-Identifier: Apache-2.0
"""Scenario files: those of the repository are read, and every mistake is said with file, key, found and wanted."""

from __future__ import annotations

import os
import re

import pytest

import routepack
from evaluate.support import SCENARIO, write_scenario
from routepack.evaluate.scenario import FOUR, load_scenario


def changed(old: str, new: str) -> str:
    assert SCENARIO.count(old) == 1
    return SCENARIO.replace(old, new)


def test_what_is_not_said_has_a_default(tmp_path):
    scenario = load_scenario(write_scenario(tmp_path))
    assert scenario.strategies == FOUR and scenario.baseline == "baseline" and scenario.packing == ("lpt", "paper")
    assert scenario.sync == "step" and scenario.topology.shards == 1 and scenario.published is None
    assert scenario.windows.seeds == (3,) and not scenario.windows.truncate
    assert scenario.device_name == "D" and scenario.bytes_per_parameter == 14


def test_replicas_share_the_state_of_the_optimizer(tmp_path):
    scenario = load_scenario(write_scenario(tmp_path, changed("dp = 4", "dp = 8")))
    assert scenario.topology.shards == 2 and scenario.bytes_per_parameter == 2 + 12 / 2
    more = SCENARIO + "[moves]\noptimizer_shards = 4\nweight_bytes = 1\n"
    assert load_scenario(write_scenario(tmp_path, more)).bytes_per_parameter == 1 + 12 / 4


STRATEGIES = """
[[strategies]]
name = "a"
placement = "keep"
packer = "areal-kk"

[[strategies]]
name = "b"
placement = "keep"
packer = "routepack"
effort = "fast"
moves = "0.05"
options = ["--sticky-eps", "0.1"]
"""


def test_strategies_become_options_of_compare(tmp_path):
    text = changed("cap = 2048", 'cap = 2048\nbaseline = "b"\npacking = ["a", "b"]') + STRATEGIES
    scenario = load_scenario(write_scenario(tmp_path, text))
    assert scenario.baseline == "b"
    common = ["--placements", "keep", "--strategies"]
    assert scenario.strategy("a").arguments() == [*common, "areal-kk", "--baseline", "keep/areal-kk"]
    more = ["--effort", "fast", "--moves", "0.05", "--sticky-eps", "0.1"]
    assert scenario.strategy("b").arguments() == [*common, "routepack", "--baseline", "keep/routepack", *more]


def test_without_the_usual_pair_packing_is_not_told_apart(tmp_path):
    assert load_scenario(write_scenario(tmp_path, SCENARIO + STRATEGIES)).packing is None


def test_published_figures_are_read(tmp_path):
    more = """
[published]
source = "somewhere"
[published.gains]
lpt = 0.04
routepack = [0.01, 0.02]
[published.throughput]
lpt = [100.0, 3]
[published.p10]
lpt = 90
[published.packing]
joint = -0.01
ep_efficiency = [0.8, 0.9]
"""
    published = load_scenario(write_scenario(tmp_path, SCENARIO + more)).published
    assert published.gains == {"lpt": (0.04, 0.04), "routepack": (0.01, 0.02)}
    assert published.throughput == {"lpt": (100.0, 3.0)} and published.p10 == {"lpt": 90.0}
    assert published.packing == {"joint": -0.01} and published.ep_efficiency == (0.8, 0.9)


PUBLISHED = '[published]\nsource = "x"\n'
MISTAKES = {
    "no TOML": ("name = ", "found no TOML"),
    "no name": (changed('name = "small"', ""), "name: found no value, wanted text"),
    "a name for no file": (changed('"small"', '"a/b"'), 'name: found "a/b", wanted small letters'),
    "an empty text": (changed('"A small one."', '" "'), 'description: found " ", wanted text'),
    "an unknown key": (changed("cap = 2048", "cap = 2048\nspeed = 3"), "speed: found an unknown key, wanted one of name,"),
    "an unknown key inside": (SCENARIO + "gpus = 3\n", "topology.gpus: found an unknown key, wanted one of dp, ep"),
    "no cap": (changed("cap = 2048", ""), "cap: found no value, wanted a whole number of at least 1"),
    "a cap that is none": (changed("cap = 2048", "cap = 0"), "cap: found 0, wanted a whole number of at least 1"),
    "true is no number": (changed("cap = 2048", "cap = true"), "cap: found true, wanted a whole number"),
    "lengths of no profile": (
        changed('"gsm8k"', '"poems"'),
        'windows.lengths: found "poems", wanted one of gsm8k, math',
    ),
    "no steps": (changed("steps = 2\n", ""), "windows.steps: found no value"),
    "a seed twice": (changed("[3]", "[3, 3]"), "windows.seeds: found [3, 3], wanted a list of whole numbers"),
    "windows of another type": (changed("[windows]", "[[windows]]"), "windows: found [{"),
    "slots that make no shards": (changed("dp = 4", "dp = 6"), "topology.dp: found 6, wanted dp·tp·cp to be a multiple"),
    "a device that is not there": (changed("device.toml", "gone.toml"), "gone.toml: cannot read: No such file"),
    "a sync of no kind": (changed("cap = 2048", 'cap = 1\nsync = "now"'), 'sync: found "now", wanted one of step, row'),
    "a negative time": (SCENARIO + "[moves]\nstate_ms = -1.0\n", "moves.state_ms: found -1.0, wanted a number of at least 0"),
    "a baseline of no strategy": (
        changed("cap = 2048", 'cap = 1\nbaseline = "x"'),
        'baseline: found "x", wanted one of baseline, lpt, paper, routepack',
    ),
    "packing of no strategies": (
        changed("cap = 2048", 'cap = 1\npacking = ["lpt", "b"]'),
        'packing: found "lpt, b", wanted two of baseline, lpt, paper, routepack',
    ),
    "packing under two placements": (
        changed("cap = 2048", 'cap = 1\npacking = ["lpt", "routepack"]'),
        "packing: found no common placement: lpt and joint, wanted the same",
    ),
    "one strategy": (SCENARIO + STRATEGIES.split("\n\n")[0], "strategies: found no two different: a, wanted at least two"),
    "a placement of no kind": (
        SCENARIO + STRATEGIES.replace('"keep"', '"best"', 1),
        'strategies[0].placement: found "best", wanted one of identity, keep',
    ),
    "figures without a source": (SCENARIO + "[published]\n", "published.source: found no value"),
    "a figure of no strategy": (
        SCENARIO + PUBLISHED + "gains = {x = 0.1}\n",
        "published.gains.x: found no such strategy, wanted one of baseline",
    ),
    "a range of three": (
        SCENARIO + PUBLISHED + "gains = {lpt = [1, 2, 3]}\n",
        "published.gains.lpt: found [1, 2, 3], wanted a list of 2 numbers",
    ),
    "a change of no metric": (
        SCENARIO + PUBLISHED + "packing = {speed = 1}\n",
        "published.packing.speed: found an unknown key",
    ),
}


DIGITS = "9" * 5000


def with_options(options):
    return SCENARIO + STRATEGIES.replace('["--sticky-eps", "0.1"]', options)


MISTAKES |= {
    "a number of thousands of digits": (changed("cap = 2048", f"cap = {DIGITS}"), "found no TOML: "),
    "a number as large in another base": (changed("cap = 2048", "cap = 0x" + "f" * 5000), "cap: found a number of more than"),
    "such a number in a list": (changed("[3]", f"[0x{'f' * 5000}]"), "windows.seeds: found a value too large to show, wanted"),
    "such a number as a time": (SCENARIO + f"[moves]\nstate_ms = 0x{'f' * 500}\n", "moves.state_ms: found a number of more"),
    "a time beyond all measure": (SCENARIO + "[moves]\nstate_ms = 2e9\n", "moves.state_ms: found 2000000000.0, wanted a number"),
    "a time that is none": (SCENARIO + "[moves]\nstate_ms = nan\n", "moves.state_ms: found nan, wanted a number"),
    "lists in lists": (SCENARIO + f"[moves]\nstate_ms = {'[' * 50_000}\n", "found "),
    "tables in tables": (changed("cap = 2048", f"cap{'.a' * 5000} = 1"), "cap: found a value too large to show, wanted"),
    "too many steps": (changed("steps = 2\n", "steps = 10_001\n"), "windows.steps: found 10001, wanted a whole number"),
    "a zero byte": (changed('"olmoe-1b-7b"', r'"olmoe\u0000"'), 'model: found "olmoe?", wanted text of one line'),
    "an escape": (changed('"A small one."', r'"A \u001b[2J"'), 'description: found "A ?[2J", wanted text'),
    "a device with a zero byte": (changed('"device.toml"', r'"\u0000"'), "device: found"),
    "an unknown key of two lines": (SCENARIO + r'"a\nb" = 1', "topology.a b: found an unknown key"),
    "a strategy with a zero byte": (SCENARIO + STRATEGIES.replace('"a"', r'"a\u0000"'), "strategies[0].name: found"),
    "a strategy with a long name": (SCENARIO + STRATEGIES.replace('"a"', f'"{"a" * 41}"'), "strategies[0].name: found"),
    "a wide name": (SCENARIO + STRATEGIES.replace('"a"', f'"{"窓" * 21}"'), "strategies[0].name: found"),
    "a scenario with a long name": (changed('"small"', f'"{"a" * 41}"'), "name: found"),
    "a model that is an option": (changed('"olmoe-1b-7b"', '"--list-models"'), 'model: found "--list-models", wanted a name'),
    "two packers": (SCENARIO + STRATEGIES.replace('"areal-kk"', '"areal-kk,routepack"'), "strategies[0].packer: found"),
    "moves that are an option": (SCENARIO + STRATEGIES.replace('"0.05"', '"--list"'), 'strategies[1].moves: found "--list"'),
    "a window among options": (with_options('["w.safetensors"]'), 'options[0]: found "w.safetensors", wanted an option'),
    "a window after a value": (with_options('["--tile", "4", "w"]'), 'strategies[1].options[2]: found "w", wanted an option'),
    "a window after a flag": (with_options('["--equal-count", "w"]'), 'strategies[1].options[1]: found "w", wanted an option'),
    "a window after what has its value": (with_options('["--tile=4", "w"]'), 'strategies[1].options[1]: found "w"'),
    "the end of options": (with_options('["--", "w"]'), 'strategies[1].options[0]: found "--", wanted an option'),
    "an option that is set already": (with_options('["--cap", "7"]'), 'strategies[1].options[0]: found "--cap", wanted'),
    "another answer": (with_options('["--list"]'), 'strategies[1].options[0]: found "--list", wanted an option'),
    "the most before the least": (
        SCENARIO + PUBLISHED + "gains = {lpt = [0.2, 0.1]}\n",
        "published.gains.lpt: found [0.2, 0.1], wanted the least and then the most",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_in_one_line(mistake, tmp_path):
    text, said = MISTAKES[mistake]
    path = write_scenario(tmp_path, text)
    with pytest.raises(routepack.Error) as caught:
        load_scenario(path)
    message = str(caught.value)
    assert said in message and message.isprintable() and len(message) < len(str(path)) + 400
    assert message.startswith(f"{tmp_path / 'gone.toml' if 'not there' in mistake else path}: ")


def test_a_window_file_that_is_not_there_is_named(tmp_path):
    files = re.sub(r"\[windows\].*?\n\n", '[windows]\nfiles = ["w.safetensors"]\n\n', SCENARIO, flags=re.DOTALL)
    with pytest.raises(routepack.IoError, match=r"w\.safetensors: cannot read: no such file \(windows\.files of"):
        load_scenario(write_scenario(tmp_path, files))
    (tmp_path / "w.safetensors").touch()
    scenario = load_scenario(write_scenario(tmp_path, files))
    assert scenario.windows.steps == 1 and scenario.with_steps(9) == scenario


def test_a_mark_of_utf_8_and_lines_of_a_description_are_read(tmp_path):
    text = changed('"A small one."', '"""\nA small\n  one."""')
    scenario = load_scenario(write_scenario(tmp_path, "\ufeff" + text))
    assert scenario.name == "small" and scenario.description == "A small one."


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(routepack.IoError, match="pipe.toml: cannot read: found no regular file, wanted a TOML file"):
        load_scenario(tmp_path / "pipe.toml")


def test_a_scenario_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(routepack.IoError, match=re.escape(f"{tmp_path / 'x.toml'}: cannot read: ")):
        load_scenario(tmp_path / "x.toml")


def scenario_files(root):
    return sorted((root / "scenarios").glob("*.toml"))


def test_every_scenario_of_the_repository_is_read_and_named_like_its_file(root):
    files = scenario_files(root)
    assert len(files) >= 8
    for path in files:
        scenario = load_scenario(path)
        assert scenario.name == path.stem
        assert scenario.device is not None and scenario.quick().windows.steps <= 3


def test_the_scenarios_have_the_papers_set_ups(root):
    tiny, flash = (load_scenario(root / "scenarios" / f"paper-{size}.toml") for size in ("tiny", "flash"))
    for scenario, shards in ((tiny, 1), (flash, 2)):
        assert scenario.topology.ep == 8 and scenario.topology.shards == shards and scenario.cap == 8192
        assert (scenario.windows.prompts, scenario.windows.rollouts, scenario.windows.lengths) == (64, 8, "gsm8k")
        assert set(scenario.published.gains) == {"lpt", "paper"}
    models = {"tiny": "ling-3.0-tiny", "flash": "ling-3.0-flash"}
    for size, model in models.items():
        for k in (8, 16, 32):
            scenario = load_scenario(root / "scenarios" / f"{size}-{k}k-h20.toml")
            assert scenario.cap == k * 1024 and scenario.model == model and scenario.windows.truncate


def test_the_page_names_every_key(root):
    page = (root / "docs" / "evaluate.md").read_text(encoding="utf-8")
    keys = {key for path in scenario_files(root) for key in re.findall(r"^([a-z_0-9]+) = ", path.read_text(), re.MULTILINE)}
    tables = {t for path in scenario_files(root) for t in re.findall(r"^\[+([a-z.0-9]+)\]+$", path.read_text(), re.MULTILINE)}
    assert len(keys) > 15 and len(tables) > 4
    known = {"optimizer_bytes", "optimizer_shards", "weight_bytes", "ranks_per_node", "state_ms", "sync", "domain"}
    strategies = {strategy.name for strategy in FOUR}
    assert [key for key in sorted((keys - strategies) | known) if f"`{key}`" not in page] == []
    assert [table for table in sorted(tables) if f"[{table}]" not in page] == []
