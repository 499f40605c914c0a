# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's Megatron policy worker, which moves experts. Imported where workers run; needs all that NeMo RL's own does.

`nemo_rl.install(Settings(mode="both", …))` makes NeMo RL's policies use `MovingMegatronPolicyWorker`. A worker class of
your own (`worker_extension_cls_fqn`) inherits from `MovingMegatronPolicyWorkerImpl` instead of NeMo RL's.
"""

from __future__ import annotations

import importlib
from typing import Any

import ray

from routepack.adapters import _megatron_bridge, nemo_rl_experts

_WORKERS = importlib.import_module("nemo_rl.models.policy.workers.megatron_policy_worker")
_UTILS = importlib.import_module("nemo_rl.models.policy.utils")

_megatron_bridge.install()
nemo_rl_experts.install(
    importlib.import_module("nemo_rl.models.megatron.setup"),
    importlib.import_module("megatron.bridge.training.checkpointing"),
)


_Own: Any = _WORKERS.MegatronPolicyWorkerImpl


class MovingMegatronPolicyWorkerImpl(nemo_rl_experts.MovingExperts, _Own):  # type: ignore[misc]
    """NeMo RL's worker, which moves experts when the driver says so."""


@ray.remote(runtime_env=_UTILS.get_runtime_env_for_policy_worker("megatron_policy_worker"))
class MovingMegatronPolicyWorker(MovingMegatronPolicyWorkerImpl):
    """The same as an actor."""
