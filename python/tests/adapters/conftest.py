# SPDX-License-Identifier: Apache-2.0
"""Shared objects of the adapters' tests."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from routepack import RoutePackWarning
from routepack.adapters import PlannerProcess, Settings, _hooks, _session, _warning


@pytest.fixture(scope="session")
def planner() -> Iterator[PlannerProcess]:
    """One real planner process for all tests that do not end it."""
    process = PlannerProcess(start_s=120.0)
    process.start()
    yield process
    process.close()


@pytest.fixture
def warned() -> Iterator[Callable[[], list[str]]]:
    """What RoutePack warned so far in this test; clears it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def told() -> list[str]:
            texts = [str(w.message) for w in caught if issubclass(w.category, RoutePackWarning)]
            caught.clear()
            return texts

        yield told


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """What the adapters logged so far in this test, whatever frameworks have made of the configuration of logging."""
    kept = _Kept()
    loggers = {id(module._LOG): module._LOG for module in (_hooks, _session, _warning)}
    for logger in loggers.values():
        monkeypatch.setattr(logger, "disabled", False)
        logger.addHandler(kept)
    yield lambda: kept.texts
    for logger in loggers.values():
        logger.removeHandler(kept)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in dataclasses.fields(Settings):
        monkeypatch.delenv(f"ROUTEPACK_{field.name.upper()}", raising=False)


def shared(monkeypatch: pytest.MonkeyPatch, planner: Any) -> None:
    """Sessions that adapters make use this planner."""
    monkeypatch.setattr("routepack.adapters._session.PlannerProcess", lambda **_: planner)
