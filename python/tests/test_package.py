# SPDX-License-Identifier: Apache-2.0
"""What the package promises about itself: types, stubs, examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import routepack
from routepack import _core, exporters
from routepack.__main__ import main as command_line


def test_the_version_is_that_of_the_headers(root):
    header = (root / "include" / "routepack" / "version.h").read_text(encoding="utf-8")
    assert f'"{routepack.__version__}"' in header


def test_every_public_name_is_there_and_documented():
    for name in routepack.__all__:
        assert name == "__version__" or inspect.getdoc(getattr(routepack, name)), name


def test_the_committed_stub_is_that_of_the_compiled_module(root, tmp_path):
    made = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "routepack._core", "-o", str(made)]
    subprocess.run(command, check=True)
    committed = root / "python" / "routepack" / "_core.pyi"
    assert made.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), "run scripts/stubs.sh"


MODULES = ["_core", "_critical_path", "_errors", "_future", "_observation", "_planner", "_replay"]
EXPORTERS = ["_areal", "_megatron", "_nemo_rl", "_slime", "_verl"]


def test_every_public_function_shows_how_it_is_called():
    for names, where in ((routepack.__all__, routepack), (exporters.__all__, exporters)):
        for name in names:
            if inspect.isroutine(getattr(where, name)):
                assert ">>> " in (inspect.getdoc(getattr(where, name)) or ""), name


@pytest.mark.parametrize("module", MODULES + [f"exporters.{name}" for name in EXPORTERS])
def test_the_examples_of_the_docstrings_run(module):
    loaded = importlib.import_module(f"routepack.{module}")
    names = {"np": np, **vars(routepack), **vars(loaded)}
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
    found = 0
    for name, value in vars(loaded).items():
        if inspect.isclass(value) or inspect.isroutine(value):
            if module != "_core" and getattr(value, "__module__", "") != loaded.__name__:
                continue
            tests = finder.find(value, name, globs=dict(names), module=False)
            members = vars(value).items() if inspect.isclass(value) and module == "_core" else ()
            for member, function in members:  # doctest does not see the methods of compiled classes
                text = inspect.getdoc(function) or ""
                tests.append(doctest.DocTestParser().get_doctest(text, dict(names), f"{name}.{member}", None, 0))
            for test in tests:
                found += len(test.examples)
                runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
    assert found > 0 or module == "_future"


USER = '''
import asyncio

import numpy as np
import routepack
from routepack.exporters import slime

window = routepack.Window.from_arrays(
    lengths=np.array([4, 4], dtype=np.int32), counts=np.array([[[4, 4]]] * 2, dtype=np.uint16), top_k=2, layers=[0]
)
cost = routepack.CostModel([routepack.Stage("full", alpha=1.0, beta=2.0)])
plan: routepack.Plan = routepack.plan(
    window, routepack.Topology(dp=2, ep=2), capacity=8, cost=cost, params=routepack.PlanParams(seed=1)
)
maps: np.ndarray = plan.physical_to_logical
builder = routepack.WindowBuilder(experts=2, top_k=2)
report: routepack.CountReport = builder.add(np.array([[[0, 1]]]), id=3)
total: int = int(report.missing.sum()) + builder.samples


def watch(now: routepack.Progress) -> bool:
    return now.gap < 0.01


async def step(planner: routepack.Planner) -> routepack.Plan:
    future = planner.submit(window, current=plan)
    early: routepack.Placement = future.placement
    made = await future
    assert early.ranks == made.ranks
    return made


with routepack.Planner(routepack.Topology(dp=2, ep=2), capacity=8, cost=cost, progress=watch) as planner:
    again = asyncio.run(step(planner))
    seen: routepack.Observation = planner.observe(again.rank_loads(window))
    late: float = planner.critical_path(aux_ms=1, actor_ms=2).extension_ms
schedule = slime(again, lengths=window.lengths)
sizes: list[int] = schedule.global_batch_sizes
metrics: dict[str, float] = {**again.metrics, **seen.metrics}
if again.search is not None and again.placing is not None:
    proposals: int = again.search.proposals
    layers: list[str] = again.placing.layers
'''


def test_types_hold_in_the_package_and_for_its_users(root, tmp_path):
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")]
    command += ["--cache-dir", str(root / "build" / "mypy"), str(root / "python" / "routepack"), str(tmp_path / "user.py")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = USER.replace("top_k=2, layers", 'top_k="2", layers').replace("list[int] =", "list[str] =")
    (tmp_path / "user.py").write_text(wrong, encoding="utf-8")
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "arg-type" in done.stdout and "[assignment]" in done.stdout, done.stdout


def test_the_user_style_code_runs():
    exec(compile(USER, "user.py", "exec"), {})


@pytest.mark.parametrize("page, count", [("replay.md", 2), ("python.md", 6)])
def test_the_python_of_the_manual_runs_and_gives_what_it_says(root, tmp_path, monkeypatch, page, count):
    text = (root / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == count
    shutil.copytree(root / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"docs/{page}", "exec"), names)
        for call, said in re.findall(r"^(\S+) +# (\[+[\d, \[\]]+\])", block, re.MULTILINE):
            assert repr(eval(call, names)) == said
    if page == "replay.md":
        assert routepack.Window.load("step7.safetensors").samples == 1


def test_the_example_of_a_step_runs(root, tmp_path):
    command = [sys.executable, str(root / "examples" / "rl_step.py"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    window = routepack.Window.load(tmp_path / "out" / "window.safetensors")
    plan = routepack.Plan.load(tmp_path / "out" / "plan.json")
    assert window.samples == 24 and plan.verify(window) == []
    whole = routepack.Window.load(root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors")
    assert (window.counts == whole.counts[window.ids]).all()
    groups = json.loads((tmp_path / "out" / "megatron.json").read_text(encoding="utf-8"))
    assert groups == plan.layout
    schedule = json.loads((tmp_path / "out" / "slime.json").read_text(encoding="utf-8"))
    assert sum(len(part) for part in schedule["partitions"]) == 24
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert 0 < metrics["routepack/ep_efficiency"] <= 1
    assert "as planned" in done.stdout and ("report.html" in done.stdout or "report: none" in done.stdout)
    assert (tmp_path / "out" / "report.html").exists() == ("report.html" in done.stdout)


def test_the_compiled_module_leaks_nothing_at_exit():
    code = (
        "import numpy as np, routepack\n"
        "w = routepack.Window.from_arrays(lengths=np.array([4], dtype=np.int32),"
        " counts=np.array([[[4, 4]]], dtype=np.uint16), top_k=2)\n"
        "c = w.counts\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_command_converts(tmp_path):
    np.save(tmp_path / "ids.npy", np.array([[[0, 2]], [[2, 1]]], dtype=np.int32))
    window = tmp_path / "w.safetensors"
    arguments = ["convert", "arrays", str(tmp_path / "ids.npy"), "--experts", "4", "--rows", "len", "-o", str(window)]
    assert command_line(arguments) == 0
    assert routepack.Window.load(window).counts.tolist() == [[[1, 1, 2, 0]]]


def test_it_is_typed():
    assert (pathlib.Path(routepack.__file__).parent / "py.typed").exists()
    assert _core.version == routepack.__version__
