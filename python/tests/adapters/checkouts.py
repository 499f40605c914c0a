# SPDX-License-Identifier: Apache-2.0
"""Frameworks from source checkouts that environment variables name. Without one those tests are skipped, and say so.

What a framework imports and a CPU machine cannot have (inference engines) is replaced by empty modules; the code that
is tested is the framework's own.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from . import empty_packages

SLIME = "ROUTEPACK_SLIME_CHECKOUT"
NEMO_RL = "ROUTEPACK_NEMO_RL_CHECKOUT"
WITHOUT_SLIME_NEEDS = ("sglang", "sglang_router", "wandb", "httpx", "aiohttp", "megatron", "safetensors", "pylatexenc")
WITHOUT_NEMO_NEEDS = ("transformers", "PIL", "requests")
POLICY_NEEDS = (
    "megatron", "zmq", "pynvml", "uvicorn", "fastapi", "mlflow", "swanlab", "wandb", "prometheus_client", "tensordict",
    "datasets",
)  # fmt: skip


def folder(variable: str) -> pathlib.Path:
    """Of a checkout; skips the test when there is none."""
    name = os.environ.get(variable, "")
    if not name:
        pytest.skip(f"{variable} names no checkout: this test did NOT run against the framework's own code")
    path = pathlib.Path(name)
    if not path.is_dir():
        pytest.fail(f"{variable}: found {name}, wanted a folder")
    return path


def run_job(job: str, *arguments: str, paths: list[pathlib.Path]) -> str:
    """What a script of this folder said, as a process of its own with these folders on its path. It has to succeed."""
    here = pathlib.Path(__file__).resolve().parent
    path = os.pathsep.join([str(here), *map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(here / job), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


@contextmanager
def imports(path: pathlib.Path, empty: tuple[str, ...]) -> Iterator[None]:
    """Imports come from a checkout first, and from nowhere for `empty` packages that are not installed."""
    finder = empty_packages.install(empty)
    sys.path.insert(0, str(path))
    try:
        yield
    finally:
        sys.path.remove(str(path))
        sys.meta_path.remove(finder)


@functools.cache
def slime_schedule() -> Any:
    """slime.utils.dp_schedule, which needs nothing else."""
    with imports(folder(SLIME), ()):
        return importlib.import_module("slime.utils.dp_schedule")


@functools.cache
def slime_reducer() -> Any:
    """slime's `get_sum_of_sample_mean`, on one context-parallel rank."""
    path = folder(SLIME)
    spec = importlib.util.spec_from_file_location(
        "slime_cp_utils", path / "slime" / "backends" / "megatron_utils" / "cp_utils.py"
    )
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    with imports(path, ("megatron",)):
        spec.loader.exec_module(module)
    module.mpu = types.SimpleNamespace(get_context_parallel_world_size=lambda: 1)
    return module.get_sum_of_sample_mean


@functools.cache
def nemo_data() -> Any:
    """nemo_rl.distributed.batched_data_dict."""
    with imports(folder(NEMO_RL), WITHOUT_NEMO_NEEDS):
        return importlib.import_module("nemo_rl.distributed.batched_data_dict")


@functools.cache
def nemo_policy() -> Any:
    """nemo_rl.models.policy.lm_policy with its data plane's policy imported, with the real Ray and transformers."""
    path = folder(NEMO_RL)
    for name in ("ray", "transformers"):
        pytest.importorskip(name, reason=f"NeMo RL's policy needs {name}: this test did NOT run")
    importlib.import_module("transformers.video_utils")  # before empty packages, which it would take for real ones
    importlib.import_module("transformers.audio_utils")
    try:
        importlib.import_module("torch.utils.tensorboard")
    except ImportError:  # without it, or without something that it needs
        sys.modules["torch.utils.tensorboard"] = empty_packages.Empty("torch.utils.tensorboard")
    with imports(path, POLICY_NEEDS):
        try:
            importlib.import_module("nemo_rl.models.policy.tq_policy")
        except AssertionError as error:  # it refuses newer versions of transformers than it knows
            if "transformers" not in str(error):
                raise
            pytest.skip(f"this test did NOT run: NeMo RL's own assertion says: {error}")
        return importlib.import_module("nemo_rl.models.policy.lm_policy")


@functools.cache
def nemo_masked_mean() -> Any:
    """NeMo RL's `masked_mean`, by which its losses are reduced over a microbatch."""
    nemo_policy()
    with imports(folder(NEMO_RL), POLICY_NEEDS):
        return importlib.import_module("nemo_rl.algorithms.utils").masked_mean
