# SPDX-License-Identifier: Apache-2.0
"""Where NeMo RL's Megatron policy workers have to know which expert is in which slot. One worker per process.

- setup: experts are attached when the optimizer is there, and a checkpoint's placement is known before its state is
  loaded;
- `routepack_move`, which the driver calls on all workers: training state onto the device, experts moved, training
  state back to where it was;
- reference log-probs: the reference model has its experts at home, and is swapped into the same slots;
- refit: names come right in Megatron-Bridge (`_megatron_bridge`), and in the order that was told at first, where the
  receiver counts instead of reading names.

`routepack.adapters.nemo_rl_worker` puts `MovingExperts` before NeMo RL's own worker class.
Source: nemo_rl/models/policy/workers/megatron_policy_worker.py, nemo_rl/models/megatron/setup.py at commit 7ea279ab,
megatron/bridge/training/checkpointing.py at commit 067f987d.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._core import Placement
from routepack._errors import InvalidInput
from routepack.adapters import _megatron_bridge, experts
from routepack.adapters._hooks import Replaced, need_function
from routepack.adapters._placements import home_of
from routepack.adapters._reasons import one_line
from routepack.adapters.nemo_rl_moves import Where, refuse

_LOG = logging.getLogger("routepack")
_HOOKS = Replaced()
#: who else would keep them: `experts` has weak references
_HELD: list[experts.WorkerExperts] = []
#: whose checkpoint is being loaded, with its optimizer state
_RESTORING: list[experts.WorkerExperts] = []


def install(setup: Any, checkpointing: Any) -> None:
    """Puts the hooks of this process in. The second time it does nothing.

    :param setup: nemo_rl.models.megatron.setup
    :param checkpointing: megatron.bridge.training.checkpointing
    :raises InvalidInput: when one of them has no such hook
    """
    if _HOOKS:
        return
    for name in ("setup_optimizer", "load_checkpoint"):
        need_function("nemo_rl", setup, "setup_model_and_optimizer", ["policy_cfg", "load_optimizer"], calls=name)
        need_function("nemo_rl", setup, name, [])
    base = "_load_base_checkpoint"
    need_function("megatron.bridge", checkpointing, "_load_checkpoint_from_path", ["load_dir"], calls=base)
    need_function("megatron.bridge", checkpointing, base, ["load_dir", "ckpt_cfg", "rank0"])
    _HOOKS.put(setup, "setup_optimizer", _attaching(setup.setup_optimizer))
    _HOOKS.put(setup, "load_checkpoint", _restoring(setup.load_checkpoint))
    _HOOKS.put(checkpointing, base, _placing(vars(checkpointing)[base]))


def uninstall() -> None:
    """Takes the hooks out again, and forgets the experts."""
    _HOOKS.put_back()
    _HELD.clear()
    _RESTORING.clear()


class MovingExperts:
    """What a Megatron policy worker of NeMo RL does besides when its experts move. Goes before its class."""

    _routepack_told: list[str] | None = None  #: names of weights, in the order that receivers were told
    _routepack_counted = False  #: the receiver of this export counts

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        refuse(config)
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self._routepack_experts()

    def routepack_placement(self) -> Where:
        """Where experts are."""
        return self._routepack_where("")

    def routepack_move(self, maps: npt.NDArray[np.int32], ranks: int, epoch: int) -> Where:
        """Before the first pass over a batch, on all workers.

        A move that failed whole is said in the reply; training can go on with experts where they are.

        :param maps: [L, E], the expert in each slot
        :raises Exception: when it cannot go on
        """
        here = self._routepack_experts()
        said = ""
        if getattr(self, "_train_step_state", None) is not None:
            said = "found a training step open, whose gradients belong to experts where they are"
        else:
            placement = Placement.from_maps(ranks=ranks, physical_to_logical=np.ascontiguousarray(maps, dtype=np.int32))
            with self._routepack_state():
                try:
                    said = here.try_move(placement, epoch)
                except InvalidInput as refusal:  # before anything has moved, on all ranks alike
                    said = one_line(refusal)
        if said:
            _LOG.warning("routepack: experts were not moved, and the step trains where they are: %s", said)
        return self._routepack_where(said)

    @contextlib.contextmanager
    def use_reference_model(self) -> Iterator[None]:
        here = self._routepack_experts()
        with super().use_reference_model():  # type: ignore[misc]
            training = here.shown
            here.show(home_of(training))
            yield
            here.show(training)  # not after an exception, which leaves the reference model in the slots

    def prepare_refit_info(self) -> Any:
        info = super().prepare_refit_info()  # type: ignore[misc]
        self._routepack_told = None if info is None else list(info)
        return info

    def broadcast_weights_for_collective(self, *args: Any, **kwargs: Any) -> Any:
        self._routepack_counted = True
        try:
            return super().broadcast_weights_for_collective(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._routepack_counted = False

    def prepare_nccl_reshard_refit_info(self, *args: Any, **kwargs: Any) -> Any:
        raise InvalidInput("nemo_rl: found a refit by nccl_reshard, wanted one by names, as experts move between ranks")

    def _iter_params_with_optional_kv_scales(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        stream = super()._iter_params_with_optional_kv_scales(*args, **kwargs)  # type: ignore[misc]
        if self._routepack_counted and self._routepack_told is not None:
            return _megatron_bridge.in_order(stream, self._routepack_told)
        return stream  # type: ignore[no-any-return]

    def _routepack_where(self, failed: str) -> Where:
        here = self._routepack_experts()
        return Where(
            here.placement.physical_to_logical, here.placement.ranks, here.epoch, failed, tuple(here.layer_numbers)
        )

    def _routepack_experts(self) -> experts.WorkerExperts:
        found = experts.of_model([self.model])  # type: ignore[attr-defined]
        if found is None:
            raise InvalidInput("nemo_rl: found a worker whose experts are not attached, wanted one with an optimizer")
        return found

    @contextlib.contextmanager
    def _routepack_state(self) -> Iterator[None]:
        """Between a worker's phases weights, gradients and optimizer state may be on the host, or released."""
        training = self.model.training  # type: ignore[attr-defined]
        self.prepare_for_training()  # type: ignore[attr-defined]
        yield
        if not training:
            self.prepare_for_lp_inference()  # type: ignore[attr-defined]


def _attaching(original: Any) -> Any:
    @functools.wraps(original)
    def setup_optimizer(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        model = kwargs["model"] if "model" in kwargs else args[2]
        _HELD.append(experts.attach(model, made[0]))
        return made

    return setup_optimizer


def _restoring(original: Any) -> Any:
    @functools.wraps(original)
    def load_checkpoint(state: Any, model: Any, optimizer: Any, *rest: Any, **more: Any) -> Any:
        here = None if optimizer is None else experts.of_model(model)
        if here is None:  # a reference model: weights alone, at home
            return original(state, model, optimizer, *rest, **more)
        _RESTORING.append(here)
        try:
            return original(state, model, optimizer, *rest, **more)
        finally:
            _RESTORING.pop()

    return load_checkpoint


def _placing(original: Any) -> Any:
    @functools.wraps(original)
    def _load_base_checkpoint(load_dir: Any, ckpt_cfg: Any, rank0: bool = False, *args: Any, **kwargs: Any) -> Any:
        made = original(load_dir, ckpt_cfg, rank0, *args, **kwargs)
        state, folder, release = made[:3]
        # Weights alone are named by expert in any checkpoint, and come right whatever the placement.
        alone = release or ckpt_cfg.finetune or not ckpt_cfg.load_optim
        if rank0 and _RESTORING and state is not None and not alone:
            if not isinstance(folder, (str, os.PathLike)):
                raise InvalidInput(
                    f"{load_dir}: found a local checkpoint, wanted torch_dist, which knows its placement"
                )
            _RESTORING[-1].restore(folder)
        return made

    return _load_base_checkpoint


__all__ = ["MovingExperts", "install", "uninstall"]
