# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core 0.16 without a GPU: its own code throughout, but for where it asks for one by name."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def patch_for_cpu() -> None:
    """Memory that Megatron puts on the current GPU goes to the host; what gloo cannot gather goes as bytes."""
    from megatron.core.tensor_parallel import mappings
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16 reads it without Transformer Engine, too
        moe_utils.te_general_gemm = None
    torch.cuda.current_device = lambda: "cpu"
    scratch = types.SimpleNamespace(get_tensor=lambda shape, dtype, name: torch.empty(shape, dtype=dtype))
    mappings.get_global_memory_buffer = lambda: scratch
    gather = mappings.dist_all_gather_func

    def gather_bytes(output: torch.Tensor, mine: torch.Tensor, group: Any) -> None:
        if mine.dtype == torch.bool:
            output, mine = output.view(torch.uint8), mine.view(torch.uint8)
        gather(output, mine, group=group)

    mappings.dist_all_gather_func = gather_bytes


class HostForGpu(TorchFunctionMode):
    """What is asked of the device «cuda» comes from the host, and tensors there say that they are on a GPU:
    Megatron's optimizers sort parameters by names like torch.cuda.BFloat16Tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        given = func(*args, **kwargs)
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return str(given).replace("torch.", "torch.cuda.")
        return given


def patch_communication() -> None:
    """gloo has no coalesced collectives over a buffer's buckets: they go one by one, when they are asked for."""
    from megatron.core.distributed import param_and_grad_buffer

    class Done:
        def wait(self) -> None:
            pass

    @contextlib.contextmanager
    def one_by_one(group: Any, async_ops: bool = False) -> Any:
        yield Done()

    def blocking(function: Any) -> Any:
        def call(*args: Any, async_op: bool = False, **options: Any) -> Any:
            return function(*args, async_op=False, **options)

        return call

    param_and_grad_buffer._coalescing_manager = one_by_one
    for name in ("dist_all_gather_func", "dist_reduce_scatter_func"):
        setattr(param_and_grad_buffer, name, blocking(getattr(param_and_grad_buffer, name)))
