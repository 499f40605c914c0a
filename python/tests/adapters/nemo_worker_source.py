# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's own Megatron policy worker, as far as a CPU machine and this Python's Megatron-Core let it be imported.

What its modules import and nothing here calls (newer Megatron-Core's names, Megatron-Bridge's training loop, Ray,
transformers) is replaced by empty classes and modules, so that every rank is there soon. What is tested are the
functions of `megatron_policy_worker.py` and `setup.py` themselves, and Megatron-Bridge's `checkpointing.py`.
"""

from __future__ import annotations

import functools
import importlib
import json
import pathlib
import re
import sys
import types
from typing import Any

from . import bridge_source, checkouts, empty_packages

_LEFT_OUT = (
    "megatron.bridge.training", "megatron.bridge.utils.instantiate_utils", "megatron.bridge.models.qwen_vl",
    "megatron.bridge.models.gpt_provider", "transformers", "datasets", "ray",
    "nemo_rl.distributed.virtual_cluster", "nemo_rl.distributed.worker_groups",
    "nemo_rl.models.generation.trtllm", "nemo_rl.models.generation.vllm", "nemo_rl.utils.checkpoint_engines",
    "nemo_rl.weight_sync", "nemo_rl.data_plane", "tensorboard", "torch.utils.tensorboard",
)  # fmt: skip
_MISSING = (
    "megatron.training", "transformer_engine", "nvtx", "nvidia_resiliency_ext", "modelopt", "multistorageclient",
)  # fmt: skip
#: What of Megatron-Bridge's training loop is real where checkpoints are loaded
_LOADING = (
    "megatron.bridge.training", "megatron.bridge.training.checkpointing", "megatron.bridge.training.utils",
    "megatron.bridge.training.utils.checkpoint_utils", "megatron.bridge.training.utils.pg_utils",
    "megatron.bridge.training.utils.log_utils",
)  # fmt: skip


def _modules(but: tuple[str, ...] = ()) -> None:
    """For a process of its own: what is empty stays so, as functions import, too."""
    path = checkouts.folder(checkouts.NEMO_RL)
    bridge_source.core()
    left_out: Any = bridge_source.Empty(_LEFT_OUT, but)
    missing: Any = bridge_source.Empty(_MISSING)
    sys.meta_path.insert(0, left_out)
    sys.meta_path.append(missing)
    sys.modules.update(ray=_ray(), transformers=_transformers())
    bridge_source.conversion()
    with checkouts.imports(path, checkouts.POLICY_NEEDS):
        _imported("nemo_rl.models.policy.workers.megatron_policy_worker")


@functools.cache
def worker() -> Any:
    """nemo_rl.models.policy.workers.megatron_policy_worker, beside `bridge_source.conversion()`."""
    _modules()
    return sys.modules["nemo_rl.models.policy.workers.megatron_policy_worker"]


@functools.cache
def setup() -> types.SimpleNamespace:
    """nemo_rl.models.megatron.setup, and megatron.bridge.training.checkpointing, which it loads by."""
    _modules(_LOADING)
    return types.SimpleNamespace(
        setup=sys.modules["nemo_rl.models.megatron.setup"],
        checkpointing=sys.modules["megatron.bridge.training.checkpointing"],
    )


def fill(modules: types.SimpleNamespace, state: Any, made: Any) -> None:
    """Around what is tested: setup makes this model and optimizer, and starts nothing that needs a GPU."""
    own = modules.setup
    for name in (
        "_patch_bridge_signal_handler_for_worker_threads", "initialize_megatron", "set_jit_fusion_options",
        "init_checkpointing_context", "build_tokenizer", "get_attached_draft_model",
        "_force_sync_optimizer_fp32_from_model",
    ):  # fmt: skip
        setattr(own, name, lambda *_, **__: None)
    loading = modules.checkpointing
    loading.read_run_config = lambda path: json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    began = types.SimpleNamespace(step=0, consumed_train_samples=0, floating_point_operations_so_far=0)
    loading._get_train_state_from_state_dict = lambda *_: began
    loading.update_num_microbatches = lambda *_, **__: None
    for name in ("wandb_utils", "mlflow_utils", "comet_utils"):
        setattr(loading, name, types.SimpleNamespace(on_load_checkpoint_success=lambda *_: None))
    own.GlobalState = lambda: state
    own.ModelAndOptimizerState = lambda *parts, **_: parts
    own.checkpoint_exists = lambda folder: folder is not None
    own.get_model = lambda *_, **__: [made.model.chunk]
    own.setup_optimizer = lambda *, model, **_: (made.model.optimizer, None)


def _ray() -> Any:
    """Its decorators leave classes as they are: nothing here is an actor."""
    ray: Any = empty_packages.Empty("ray")
    ray.remote = lambda *args, **options: args[0] if args else lambda cls: cls
    return ray


def _transformers() -> Any:
    transformers: Any = empty_packages.Empty("transformers")
    transformers.__version__ = "5.0.0"
    transformers.AutoTokenizer = type("AutoTokenizer", (), {"from_pretrained": None})
    return transformers


def _imported(name: str) -> Any:
    """Names that a newer Megatron-Core has become empty classes, until the import is through."""
    for _ in range(40):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("megatron."):
                raise
            sys.modules[str(error.name)] = empty_packages.Empty(str(error.name))
        except ImportError as error:
            said = re.match(r"cannot import name '(\w+)' from '(megatron\.[\w.]+)'", str(error))
            if said is None:
                raise
            setattr(sys.modules[said[2]], said[1], type(said[1], (), {}))
    return importlib.import_module(name)
