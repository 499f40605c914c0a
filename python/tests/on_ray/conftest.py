# SPDX-License-Identifier: Apache-2.0
"""One local cluster for all tests of this folder. Without Ray they are skipped, and say so."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from .ray_cluster import local_cluster, planning  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("ray") is not None:
        return
    skip = pytest.mark.skip(reason="Ray is not installed (requirements/ray.txt): nothing here ran against a cluster")
    here = pathlib.Path(__file__).resolve().parent
    for item in items:
        if here in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    with local_cluster() as ray:
        yield ray


@pytest.fixture(scope="session")
def shared(cluster: Any) -> Iterator[Any]:
    """Three counting actors and a planner, for tests that leave them as they were."""
    with planning(counters=3) as made:
        assert made.wait_ready(120.0)
        yield made


@pytest.fixture
def ready(shared: Any) -> Iterator[Any]:
    """The same once all actors are there (again), with experts at home; no step is left behind."""
    assert shared.wait_ready(120.0)
    shared.current = None
    yield shared
    for job in [*shared._waiting, shared._running]:
        if job is not None:
            job.future.cancel()
