# SPDX-License-Identifier: Apache-2.0
"""What is packed: everything that the build needs, and nothing else. scripts/wheel_test.sh installs the result."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile

import pytest


@pytest.fixture(scope="module")
def packed(root, tmp_path_factory):
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("sdist")
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=root, capture_output=True, text=True, check=True, env=env
    )
    path = folder / done.stdout.split()[-1]
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    return path, names


def test_the_sdist_holds_every_source(packed, root):
    _, names = packed
    for folder in ("src", "include", "cmake", "python/bindings", "python/routepack"):
        wanted = {
            path.relative_to(root).as_posix()
            for path in (root / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert wanted <= names, sorted(wanted - names)[:5]
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "PKG-INFO"} <= names


def test_the_sdist_holds_nothing_else(packed):
    path, names = packed
    places = ("src/", "include/", "cmake/", "python/bindings/", "python/routepack/")
    rest = {name for name in names if not name.startswith(places)}
    assert rest == {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "PKG-INFO"}
    assert path.stat().st_size < 2_000_000


def test_the_package_needs_numpy_alone():
    needed = importlib.metadata.requires("routepack") or []
    assert [line for line in needed if "extra ==" not in line] == ["numpy>=1.24"]
    extra = {line.split(">")[0].split(";")[0].strip() for line in needed if "extra ==" in line and "report" in line}
    assert {"plotly", "matplotlib", "rich"} <= extra
