# SPDX-License-Identifier: Apache-2.0
"""NVIDIA Megatron-Bridge from a folder that an environment variable names: of `pip install --no-deps --target`, or
`src` of a checkout. Only what converts weights is imported; models, training and adapters (LoRA) are left out.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import os
import pathlib
import sys
import types
from typing import Any

import pytest

from . import empty_packages

FOLDER = "ROUTEPACK_MEGATRON_BRIDGE"
_REAL = ("megatron.bridge", "megatron.bridge.models", "megatron.bridge.models.conversion")
_LEFT_OUT = (
    "megatron.bridge.peft", "megatron.bridge.models.gpt", "megatron.bridge.models.common",
    "megatron.bridge.models.model_provider", "megatron.bridge.models.transformer_config",
    "megatron.bridge.utils.fusions",
)  # fmt: skip
_MISSING = ("megatron.training", "megatron.core._slurm_utils", "transformer_engine", "modelopt", "rich", "mamba_ssm")


class Empty:
    """Empty modules for what conversion only mentions."""

    def __init__(self, roots: tuple[str, ...], but: tuple[str, ...] = ()) -> None:
        self.roots, self.but = roots, but

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in self.but or not any(name == root or name.startswith(f"{root}.") for root in self.roots):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return empty_packages.Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def folder() -> pathlib.Path:
    """Skips the test when there is none."""
    name = os.environ.get(FOLDER, "")
    if not name:
        pytest.skip(f"{FOLDER} names no folder: this test did NOT run against Megatron-Bridge's own code")
    path = pathlib.Path(name)
    if not (path / "megatron" / "bridge").is_dir():
        pytest.fail(f"{FOLDER}: found {name}, wanted a folder with megatron/bridge in it")
    return path


def core() -> None:
    """Megatron-Core, before empty packages, which it would take for real ones."""
    for name in ("optimizer", "distributed", "transformer.moe.moe_layer", "models.gpt.gpt_layer_specs", "utils"):
        importlib.import_module(f"megatron.core.{name}")


@functools.cache
def conversion() -> Any:
    """Its modules `model_bridge`, `param_mapping` and `mapping_registry`."""
    path = folder()
    core()
    sizes: Any = importlib.import_module("megatron.core._rank_utils")
    if not hasattr(sizes, "safe_get_world_size"):  # newer than the Megatron-Core that this Python has
        sizes.safe_get_world_size = lambda: int(os.environ.get("WORLD_SIZE", "1"))
    for name in _REAL:  # without what their __init__ imports
        package = types.ModuleType(name)
        package.__path__ = [str(path / name.replace(".", "/"))]
        sys.modules[name] = package
    kinds: Any = empty_packages.Empty("megatron.bridge.training.fsdp_compat")
    kinds.MEGATRON_FSDP_TYPES = ()
    sys.modules["megatron.bridge.training.fsdp_compat"] = kinds
    left_out: Any = Empty(_LEFT_OUT)
    missing: Any = Empty(_MISSING)
    sys.meta_path.insert(0, left_out)
    sys.meta_path.append(missing)
    try:
        modules = {
            name: importlib.import_module(f"{_REAL[-1]}.{name}")
            for name in ("param_mapping", "mapping_registry", "model_bridge")
        }
    finally:
        sys.meta_path.remove(left_out)
        sys.meta_path.remove(missing)
    return types.SimpleNamespace(**modules)
