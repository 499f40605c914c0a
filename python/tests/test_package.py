# SPDX-License-Identifier: Apache-2.0
"""What the package promises about itself: types, stubs, examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import routepack
import routepack.calibrate
import routepack.convert
import routepack.report
import routepack.transfer
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


def with_examples() -> list[str]:
    """Every module of the package that has an example, and the compiled one."""
    folder = pathlib.Path(routepack.__file__).parent
    names = [path.relative_to(folder).with_suffix("") for path in sorted(folder.rglob("*.py")) if ">>> " in path.read_text("utf-8")]
    return ["_core", *(".".join(name.parts).removesuffix(".__init__") for name in names)]


PUBLIC = (routepack, exporters, routepack.report, routepack.convert, routepack.transfer, routepack.calibrate)


def is_function(value: object) -> bool:
    return inspect.isroutine(value) or type(value).__name__ == "nb_func"  # a compiled one


def test_every_public_function_shows_how_it_is_called():
    for where in PUBLIC:
        for name in where.__all__:
            try:
                value = getattr(where, name)
            except ModuleNotFoundError as error:  # what needs torch
                assert where is routepack.transfer and error.name == "torch"
                continue
            if is_function(value) and name != "main":
                assert ">>> " in (inspect.getdoc(value) or ""), name


@pytest.mark.parametrize("module", with_examples())
def test_the_examples_of_the_docstrings_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        loaded = importlib.import_module(f"routepack.{module}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("routepack"):
            raise
        pytest.skip(f"{error.name} is not installed")
    names = {"np": np, "routepack": routepack, **vars(routepack), **vars(loaded)}
    if module.startswith("report"):  # what every report begins with
        counts = np.array([[[3, 1]], [[0, 4]], [[2, 2]], [[1, 3]]], dtype=np.uint16)
        window = routepack.Window.from_arrays(lengths=np.array([4] * 4, dtype=np.int32), counts=counts, top_k=1)
        cost = routepack.CostModel([routepack.Stage("full", alpha=1.0, beta=2.0)])
        plan = routepack.plan(window, routepack.Topology(dp=2, ep=2), capacity=8, cost=cost)
        names.update(window=window, plan=plan)
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
    found = 0
    for name, value in vars(loaded).items():
        if inspect.isclass(value) or is_function(value):
            if module != "_core" and getattr(value, "__module__", "") != loaded.__name__:
                continue
            tests = finder.find(value, name, globs=dict(names), module=False)
            if type(value).__name__ == "nb_func":  # nor these
                text = inspect.getdoc(value) or ""
                tests = [doctest.DocTestParser().get_doctest(text, dict(names), name, None, 0)]
            members = vars(value).items() if inspect.isclass(value) and module == "_core" else ()
            for member, function in members:  # doctest does not see the methods of compiled classes
                text = inspect.getdoc(function) or ""
                tests.append(doctest.DocTestParser().get_doctest(text, dict(names), f"{name}.{member}", None, 0))
            for test in tests:
                found += len(test.examples)
                runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
    assert found > 0


USER = '''
import asyncio

import numpy as np
import numpy.typing as npt
import routepack
from routepack.exporters import slime

window = routepack.Window.from_arrays(
    lengths=np.array([4, 4], dtype=np.int32), counts=np.array([[[4, 4]]] * 2, dtype=np.uint16), top_k=2, layers=[0]
)
cost = routepack.CostModel([routepack.Stage("full", alpha=1.0, beta=2.0)])
plan: routepack.Plan = routepack.plan(
    window, routepack.Topology(dp=2, ep=2), capacity=8, cost=cost, params=routepack.PlanParams(seed=1)
)
maps: npt.NDArray[np.int32] = plan.physical_to_logical
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


# The oldest Python that numpy's own types still know, and this one.
OLDEST = "3.10" if tuple(map(int, np.__version__.split(".")[:2])) < (2, 5) else "3.12"
VERSIONS = sorted({OLDEST, f"{sys.version_info.major}.{sys.version_info.minor}"})


@pytest.mark.parametrize("version", VERSIONS)
def test_types_hold_in_the_package_and_for_its_users(root, tmp_path, version):
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), "--python-version", version]
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


EVERYTHING = """
import asyncio, pickle, threading
import numpy as np
import routepack, routepack.report
from routepack.exporters import megatron

counts = np.array([[[3, 1]], [[0, 4]], [[2, 2]], [[1, 3]]], dtype=np.uint16)
window = routepack.Window.from_arrays(lengths=np.array([4] * 4, dtype=np.int32), counts=counts, top_k=1)
kept = window.counts
cost = routepack.CostModel([routepack.Stage("full", alpha=1.0, beta=2.0)])
topology = routepack.Topology(dp=2, ep=2)
options = dict(capacity=8, cost=cost, params=routepack.PlanParams(two_batches=True))

class Circle:
    pass

circle = Circle()
circle.self, circle.everything = circle, [window, cost, topology, options]
circle.watch = lambda now: circle.self is circle
recording = routepack.report.Recording()
plan = routepack.plan(window, topology, progress=recording, placed=lambda where: circle, **options)
routepack.plan(window, topology, progress=circle.watch, **options)
analysis = routepack.report.analyse(pickle.loads(pickle.dumps(plan)), window, progress=recording.steps)
planner = routepack.Planner(topology, current=plan, progress=circle.watch, **options)

async def step():
    return await planner.submit(window)

asyncio.run(step())
first, second = planner.submit(window), planner.submit(window, topology=routepack.Topology(dp=1, ep=1), capacity=1)
early, failure = first.placement, second.exception()
planner.observe(plan.rank_loads(window), tolerance=9.0)
groups, bounds, placing, search = megatron(plan), plan.bounds, plan.placing, plan.search
try:
    routepack.plan(window, topology, capacity=1, cost=cost)
except routepack.InfeasibleError as error:
    caught = error
"""

OF_OTHERS = EVERYTHING + """
def forever():
    mine = [window, plan, topology]
    threading.Event().wait()

threading.Thread(target=forever, daemon=True).start()
"""


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "planner.submit(window)", "last = planner.submit(window); last.cancel()"])
def test_nothing_of_ours_is_left_at_exit(ending):
    code = EVERYTHING + ending
    env = {**os.environ, "ROUTEPACK_LEAK_WARNINGS": "1"}
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True, env=env)
    assert (done.stdout, done.stderr) == ("", "")


def test_what_others_hold_at_exit_is_no_message():
    env = {key: value for key, value in os.environ.items() if key != "ROUTEPACK_LEAK_WARNINGS"}
    done = subprocess.run([sys.executable, "-c", OF_OTHERS], capture_output=True, text=True, check=True, env=env)
    assert (done.stdout, done.stderr) == ("", "")
    done = subprocess.run([sys.executable, "-c", OF_OTHERS], capture_output=True, text=True, check=True,
                          env={**env, "ROUTEPACK_LEAK_WARNINGS": "1"})  # fmt: skip
    assert "leaked" in done.stderr, "the test above can fail"


def test_the_command_converts(tmp_path):
    np.save(tmp_path / "ids.npy", np.array([[[0, 2]], [[2, 1]]], dtype=np.int32))
    window = tmp_path / "w.safetensors"
    arguments = ["convert", "arrays", str(tmp_path / "ids.npy"), "--experts", "4", "--rows", "len", "-o", str(window)]
    assert command_line(arguments) == 0
    assert routepack.Window.load(window).counts.tolist() == [[[1, 1, 2, 0]]]


def test_it_is_typed():
    assert (pathlib.Path(routepack.__file__).parent / "py.typed").exists()
    assert _core.version == routepack.__version__
