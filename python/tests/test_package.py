# SPDX-License-Identifier: Apache-2.0
"""What the package promises about itself: types, stubs, examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import routepack
from routepack import _core
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


@pytest.mark.parametrize("module", ["_core", "_errors", "_replay"])
def test_the_examples_of_the_docstrings_run(module):
    loaded = importlib.import_module(f"routepack.{module}")
    names = {"np": np, **vars(routepack)}
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
    assert found > 0


USER = '''
import numpy as np
import routepack

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
'''


def test_types_hold_in_the_package_and_for_its_users(root, tmp_path):
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")]
    command += ["--cache-dir", str(root / "build" / "mypy"), str(root / "python" / "routepack"), str(tmp_path / "user.py")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = USER.replace("top_k=2, layers", 'top_k="2", layers')
    (tmp_path / "user.py").write_text(wrong, encoding="utf-8")
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "top_k" in done.stdout or "arg-type" in done.stdout, done.stdout


def test_the_user_style_code_runs():
    exec(compile(USER, "user.py", "exec"), {})


def test_the_python_of_the_manual_runs_and_gives_what_it_says(root, tmp_path, monkeypatch):
    text = (root / "docs" / "replay.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/replay.md", "exec"), names)
        for call, said in re.findall(r"^(\S+\(\)) +# (\[+[\d, \[\]]+\])", block, re.MULTILINE):
            assert repr(eval(call, names)) == said
    assert routepack.Window.load("step7.safetensors").samples == 1


def test_the_compiled_module_leaks_nothing_at_exit():
    code = (
        "import numpy as np, routepack\n"
        "w = routepack.Window.from_arrays(lengths=np.array([4], dtype=np.int32),"
        " counts=np.array([[[4, 4]]], dtype=np.uint16), top_k=2)\n"
        "c = w.counts\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_command_knows_its_subcommands(capfd, tmp_path):
    ids = np.array([[[0, 2]], [[2, 1]]], dtype=np.int32)
    np.save(tmp_path / "ids.npy", ids)
    window = tmp_path / "w.safetensors"
    arguments = ["convert", "arrays", str(tmp_path / "ids.npy"), "--experts", "4", "--rows", "len", "-o", str(window)]
    assert command_line(arguments) == 0
    assert routepack.Window.load(window).counts.tolist() == [[[1, 1, 2, 0]]]
    assert command_line(["--version"]) == 0 and f"routepack {routepack.__version__}" in capfd.readouterr().out
    assert command_line(["--help"]) == 0 and "convert" in capfd.readouterr().out
    for wrong, found in ((["plan"], '"plan"'), ([], "no subcommand")):
        assert command_line(wrong) == 2
        assert capfd.readouterr().err == f"routepack: found {found}, wanted convert; the others are in the C++ command line\n"


def test_it_is_typed():
    assert (pathlib.Path(routepack.__file__).parent / "py.typed").exists()
    assert _core.version == routepack.__version__
