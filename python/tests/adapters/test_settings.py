# SPDX-License-Identifier: Apache-2.0
"""What a user writes: wrong settings are said when they are made, and switching off needs nothing else to be right."""

from __future__ import annotations

import pathlib
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from routepack import InvalidInput
from routepack.adapters import PlannerProcess, Reason, Session, Settings, _hooks

from .batches import COST, Batch
from .test_session import step_of

Told = Callable[[], list[str]]
_SEEN: list[tuple[float, int]] = []


def log(metrics: Mapping[str, float], step: int) -> None:
    _SEEN.append((metrics["routepack/fallback"], step))


LOG = f"{__name__}:log"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"effort": "turbo"}, "effort: found 'turbo', wanted 'paper', 'fast', 'default', 'quality'"),
    ({"threads": -1}, "threads: found -1"),
    ({"seed": -1}, "seed: found -1"),
    ({"seed": 1 << 70}, "seed: found"),
    ({"deadline_ms": "500"}, "deadline_ms: found '500', wanted an integer"),
    ({"deadline_ms": 0.5}, "deadline_ms: found 0.5, wanted an integer"),
    ({"grace_ms": 0}, "grace_ms: found 0"),
    ({"experts": True}, "experts: found True, wanted an integer"),
    ({"max_missing": "all"}, "max_missing: found 'all', wanted a number"),
    ({"max_missing": float("nan")}, "max_missing: found nan"),
    ({"allow": "moe_expert_capacity_factor"}, "allow: found 'moe_expert_capacity_factor', wanted a tuple of names"),
    ({"enabled": "0"}, "enabled: found '0', wanted True or False"),
    ({"cost": None}, "cost: found None, wanted a string"),
    ({"mode": "fast"}, "mode: found 'fast', wanted one of packing, placement, both"),
    ({"on_metrics": "my_module:log"}, "on_metrics: found 'my_module:log', wanted a function"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG, ids=lambda some: next(iter(some)) if isinstance(some, dict) else "")
def test_a_wrong_setting_is_refused_by_name(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text.replace("(", r"\(")):
        Settings(**wrong)


@pytest.mark.parametrize("word", ["0", "off", "No", "FALSE", " 0 "])
def test_switching_off_needs_nothing_else_to_be_right(word: str, warned: Told, logged: Told) -> None:
    found = Settings.from_environment(
        {
            "ROUTEPACK_ENABLED": word,
            "ROUTEPACK_MODE": "bogus",
            "ROUTEPACK_DEADLINE_MS": "soon",
            "ROUTEPACK_DEADLINE": "5",
            "ROUTEPACK_EFFORT": "turbo",
            "ROUTEPACK_COST": "/nowhere/cost.toml",
            "ROUTEPACK_ON_METRICS": "nowhere:log",
        }
    )
    assert not found.enabled and not found.moves_itself
    found.check()
    assert found.with_cost_text() is found
    session = Session(found, framework="slime")
    assert session.run(lambda: step_of(Batch()), lambda planned: planned) is None
    assert session.metrics["routepack/fallback"] == Reason.OFF
    session.close()
    assert warned() == [] and logged() == []


@pytest.mark.parametrize("wrong", [{"cost": None}, {"allow": ["a"]}, {"deadline_ms": "soon"}, {"on_metrics": 3}])
def test_switching_off_in_code_needs_nothing_else_to_be_right(wrong: dict[str, Any]) -> None:
    assert not Settings(enabled=False, **wrong).enabled
    assert not Settings.from_mapping({"enabled": "off", **wrong}).enabled
    assert not Settings.from_mapping({"enabled": False, "unknown": 1, **wrong}).enabled


@pytest.mark.parametrize("word", ["", "maybe", "2"])
def test_a_switch_that_is_neither_on_nor_off_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match=f"enabled: found {word!r}, wanted 0 or 1"):
        Settings.from_environment({"ROUTEPACK_ENABLED": word})


def test_words_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="deadline_ms: found 'soon', wanted an integer"):
        Settings.from_environment({"ROUTEPACK_DEADLINE_MS": "soon"})
    with pytest.raises(InvalidInput, match=r"max_missing: found '5%', wanted a number"):
        Settings.from_environment({"ROUTEPACK_MAX_MISSING": "5%"})


def test_what_a_configuration_file_has_is_taken() -> None:
    found = Settings.from_mapping({"deadline_ms": None, "allow": ["a", "b"], "on_metrics": "", "cost": COST})
    assert found == Settings(cost=COST, allow=("a", "b"))


def test_numbers_of_numpy_are_those_of_python() -> None:
    long: Any = np.int16(30000)
    found = Settings(deadline_ms=long, grace_ms=long, max_missing=np.float32(0.25))  # type: ignore[arg-type]
    assert type(found.deadline_ms) is int and found.deadline_ms + found.grace_ms == 60000
    assert type(found.max_missing) is float and found == Settings(deadline_ms=30000, grace_ms=30000, max_missing=0.25)


def test_a_warning_about_a_name_ends_no_job() -> None:
    """python -W error"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Settings.from_environment({"ROUTEPACK_MOD": "both"}).mode == "packing"


def test_a_name_that_is_nearly_a_setting_is_warned_about(warned: Told) -> None:
    Settings.from_environment({"ROUTEPACK_MOD": "both", "ROUTEPACK_DEADLINE": "5", "ROUTEPACK_COST": COST})
    assert warned() == [
        "ROUTEPACK_DEADLINE: not known, is ROUTEPACK_DEADLINE_MS meant?",
        "ROUTEPACK_MOD: not known, is ROUTEPACK_MODE meant?",
    ]
    names = ("BIN", "LONG", "SLIME_CHECKOUT", "NEMO_RL_CHECKOUT", "MEGATRON_BRIDGE", "MEGATRON_CHECKOUT", "SIMD")
    Settings.from_environment({f"ROUTEPACK_{name}": "1" for name in names})
    assert warned() == []


def test_a_function_can_be_named_in_the_environment(planner: PlannerProcess) -> None:
    found = Settings.from_environment({"ROUTEPACK_COST": COST, "ROUTEPACK_ON_METRICS": LOG})
    found = pickle.loads(pickle.dumps(found))
    found.check()
    _SEEN.clear()
    session = Session(found, framework="slime", planner=planner)
    assert session.run(lambda: step_of(Batch()), lambda planned: planned) is not None
    assert _SEEN == [(0.0, 1)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere:log", r"on_metrics: nowhere:log: cannot be imported \(ModuleNotFoundError"),
        (f"{__name__}:nothing", r"cannot be imported \(AttributeError"),
        (f"{__name__}:WRONG", "found a list, wanted a function"),
    ],
)
def test_a_named_function_that_is_not_there_is_a_reason_at_every_step(
    name: str, text: str, warned: Told, logged: Told
) -> None:
    found = Settings.from_environment({"ROUTEPACK_COST": COST, "ROUTEPACK_ON_METRICS": name})
    with pytest.raises(InvalidInput, match=text):
        found.check()
    session = Session.or_off(found, framework="slime")
    for _ in range(2):
        assert session.run(lambda: step_of(Batch()), lambda planned: planned) is None
        assert session.metrics["routepack/fallback"] == Reason.BAD_INPUT
        assert len(warned()) == 1 and logged() == []
    session.close()


def test_a_module_that_ends_the_process_when_it_is_imported_does_not(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import pathlib, sys\npathlib.Path(__file__).with_name('runs').open('a').write('x')\nsys.exit(3)\n"
    (tmp_path / "leaves.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Settings.from_environment({"ROUTEPACK_COST": COST, "ROUTEPACK_ON_METRICS": "leaves:log"})
    for _ in range(3):
        with pytest.raises(InvalidInput, match="leaves:log: cannot be imported"):
            found.check()
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "x"


def test_a_name_without_a_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="on_metrics: found 'my_module.log', wanted module:function"):
        Settings.from_environment({"ROUTEPACK_ON_METRICS": "my_module.log"})


def test_a_script_finds_what_lies_beside_it_before_hooks_go_in(tmp_path: pathlib.Path) -> None:
    """As `python script.py` does: a framework's launch script may lie in the folder of the framework."""
    (tmp_path / "script.py").write_text("import sys\nprint('ran', *sys.argv[1:])\n", encoding="utf-8")
    (tmp_path / "framework_beside.py").write_text("", encoding="utf-8")
    code = (
        "import sys; from routepack.adapters import _hooks; "
        "sys.argv = ['x', sys.argv[1], '--a']; "
        "_hooks.run_script(lambda: _hooks.module_of('x', 'framework_beside'), 'usage')"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "script.py")]
    done = subprocess.run(run, cwd="/", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "ran --a\n", done.stderr


def test_a_linked_script_finds_what_lies_beside_the_file_as_in_python(tmp_path: pathlib.Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "real" / "beside.py").write_text("", encoding="utf-8")
    (tmp_path / "real" / "s.py").write_text("import beside\nprint('ran')\n", encoding="utf-8")
    (tmp_path / "link" / "s.py").symlink_to("../real/s.py")
    code = "import sys; from routepack.adapters import _hooks; _hooks.run_script(lambda: None, 'usage')"
    run = [sys.executable, "-c", code, str(tmp_path / "link" / "s.py")]
    done = subprocess.run(run, cwd="/", capture_output=True, text=True, timeout=120)
    assert done.stdout == "ran\n", done.stderr


def test_an_installation_that_fails_leaves_nothing() -> None:
    replaced, owner = _hooks.Replaced(), type("Owner", (), {"f": 1})
    with pytest.raises(InvalidInput), _hooks.or_nothing(replaced.put_back):
        replaced.put(owner, "f", 2)
        raise InvalidInput("the other hook is not there")
    assert owner.f == 1 and not replaced  # type: ignore[attr-defined]
    with _hooks.or_nothing(replaced.put_back):
        replaced.put(owner, "f", 2)
    assert owner.f == 2  # type: ignore[attr-defined]


def test_where_a_hook_is_missing_switching_off_is_enough(logged: Told) -> None:
    replaced, owner = _hooks.Replaced(), type("Owner", (), {"f": 1})
    with _hooks.or_nothing(replaced.put_back, switched_off=True):
        replaced.put(owner, "f", 2)
        raise InvalidInput("framework: found no such hook")
    (text,) = logged()
    assert owner.f == 1 and "switched off" in text and "found no such hook" in text  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError), _hooks.or_nothing(replaced.put_back, switched_off=True):
        _ = 1 / 0
