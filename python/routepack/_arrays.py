# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries as numpy arrays over the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._errors import InvalidInput

# Values of DLDeviceType whose memory the CPU can read.
_CPU, _CUDA_HOST, _ROCM_HOST = 1, 3, 11


def host_array(array: Any, name: str) -> npt.NDArray[Any]:
    """A numpy array in native byte order over the memory of `array`.

    Takes numpy arrays, CPU tensors (anything with DLPack), objects with the buffer protocol, and lists, which alone are
    copied. Foreign byte order is refused, as only a copy can change it.
    """
    result = _as_numpy(array, name)
    if not result.dtype.isnative:
        raise InvalidInput(
            f"{name}: found byte order {result.dtype.str}, wanted the machine's own; "
            f'array.astype(array.dtype.newbyteorder("=")) converts'
        )
    if result.dtype.kind not in "biu":
        raise InvalidInput(f"{name}: found {result.dtype.name}, wanted integers")
    return result


def ids_array(ids: Any, name: str = "ids") -> npt.NDArray[Any]:
    """The same for ids, which are read once: foreign byte order is converted."""
    result = _as_numpy(ids, name)
    if not result.dtype.isnative:
        result = result.astype(result.dtype.newbyteorder("="))
    return host_array(result, name)


def mask_array(mask: Any, tokens: int | None = None) -> npt.NDArray[np.uint8] | None:
    """A mask of booleans, or of zeros and other numbers, as contiguous bytes."""
    if mask is None:
        return None
    result = host_array(_as_numpy(mask, "mask"), "mask")
    if result.ndim != 1:
        raise InvalidInput(f"mask: found {result.ndim} dimensions, wanted 1: one value per token")
    return np.ascontiguousarray(result != 0).view(np.uint8)


def map_array(physical_to_logical: Any) -> npt.NDArray[np.int32] | None:
    """A map of slots as contiguous int32 [layers, slots]."""
    if physical_to_logical is None:
        return None
    result = ids_array(physical_to_logical, "physical_to_logical")
    if result.ndim != 2:
        raise InvalidInput(f"physical_to_logical: found {result.ndim} dimensions, wanted 2: [layers, slots]")
    limit = np.iinfo(np.int32)
    if result.size and (result.min() < limit.min or result.max() > limit.max):
        raise InvalidInput(f"physical_to_logical: found {result.max()}, wanted the number of an expert")
    return np.ascontiguousarray(result, dtype=np.int32)


def _as_numpy(array: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, (list, tuple)):
        result = np.asarray(array)
        return result if result.dtype.kind != "f" or result.size else result.astype(np.int64)
    if hasattr(array, "__dlpack_device__"):
        device = int(array.__dlpack_device__()[0])
        if device not in (_CPU, _CUDA_HOST, _ROCM_HOST):
            raise InvalidInput(
                f"{name}: found a tensor on a device (DLPack type {device}), wanted one in host memory; "
                f"tensor.cpu() copies it there"
            )
        if getattr(array, "requires_grad", False):
            raise InvalidInput(f"{name}: found a tensor that requires a gradient, wanted tensor.detach()")
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError) as error:
            raise InvalidInput(f"{name}: found a tensor that numpy cannot view ({error})") from None
    try:
        return np.asarray(memoryview(array))
    except (TypeError, ValueError):
        found = type(array).__name__
        raise InvalidInput(
            f"{name}: found {found}, wanted an array: numpy, a CPU tensor, or the buffer protocol"
        ) from None
