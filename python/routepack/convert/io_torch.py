# SPDX-License-Identifier: Apache-2.0
"""Files of `torch.save`. torch is imported here, on first use, and nowhere else.

A torch archive is a zip with a pickle in it. It is loaded with `weights_only=True`, memory-mapped: torch's restricted
unpickler builds plain containers, numbers and tensors and calls nothing else. Numpy arrays and scalars, which
frameworks mix in, are taken over by the small stand-ins below rather than by numpy's own pickle support, which trusts
its input. Anything else is refused with its name; there is no option to load it all the same.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from routepack.convert.errors import FormatError, InvalidInput, shown
from routepack.convert.io_npz import is_torch_archive, open_zip
from routepack.convert.limits import Limits
from routepack.convert.options import Path
from routepack.convert.tensor import Array, Tensor, named, open_binary

_ADVICE = "only loading that may run code could read it; save plain lists, numbers and tensors instead"


class _Type:
    """Stands for numpy.dtype in a pickle."""

    def __init__(self, code: object = "", *_: object) -> None:
        self.code, self.order = str(code), "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = (
            state[1] if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "=") else "?"
        )

    def resolved(self) -> np.dtype[Any] | None:
        """Integers and booleans only."""
        if self.order == "?" or self.code not in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"):
            return None
        return np.dtype(("=" if self.order == "|" else self.order) + self.code)


class _Array:
    """Stands for numpy.ndarray in a pickle; `value` is None when it held anything but integers."""

    value: Array | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            return
        _, shape, dtype, fortran, data = state
        known = dtype.resolved() if isinstance(dtype, _Type) else None
        if known is None or not isinstance(data, bytes) or not isinstance(shape, tuple):
            return
        size = known.itemsize
        for n in shape:
            if type(n) is not int or n < 0:
                return
            size *= n
        if size == len(data):
            self.value = np.frombuffer(data, dtype=known).reshape(shape, order="F" if fortran is True else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _scalar(*_: object) -> None:
    return None  # rewards and the like: nothing that is counted


def _stand_ins() -> list[tuple[Any, str]]:
    # torch calls BUILD only on types in this list, so the stand-ins stand in it as well as for numpy's names.
    named: list[tuple[Any, str]] = [(_Type, "numpy.dtype"), (_Array, "numpy.ndarray")]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        named += [(_reconstruct, f"{module}._reconstruct"), (_scalar, f"{module}.scalar")]
    return named


def _is_torchs(allowed: Any) -> bool:
    """Of a class or function, or of such a one and its name."""
    one = allowed[0] if isinstance(allowed, tuple) else allowed
    return str(getattr(one, "__module__", "")).split(".")[0] == "torch"


_allowing = threading.Lock()


@contextlib.contextmanager
def _only(serialization: Any, allowed: list[Any]) -> Iterator[None]:
    """What a pickle may name: `allowed` and what torch allows itself, but nothing that other packages of the process
    have allowed (Megatron-Core lets numpy rebuild its own arrays, whose names our stand-ins have, too)."""
    with _allowing:
        others = serialization.get_safe_globals()
        serialization.clear_safe_globals()
        serialization.add_safe_globals([*filter(_is_torchs, others), *allowed])
        try:
            yield
        finally:
            serialization.clear_safe_globals()
            serialization.add_safe_globals(others)


def load(path: Path, limits: Limits) -> Any:
    """The object of a `torch.save` file: dicts, lists, numbers, text, torch tensors, `_Array`.

    @raises IoError, FormatError; InvalidInput when torch is not installed
    """
    with open_binary(path) as file:
        if file.read(4) != b"PK\x03\x04":
            raise FormatError(f"{path}: found no archive of torch.save, wanted one (torch 1.6 or newer)")
        file.seek(0)
        archive = open_zip(file, path, limits)
        if not is_torch_archive(archive):
            raise FormatError(f"{path}: found an archive without data.pkl, wanted a file of torch.save")
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise FormatError(
                    f"{path}, {shown(info.filename)}: found a compressed member, wanted a file as torch.save writes it"
                )
            if info.filename.endswith("/data.pkl") and info.file_size > limits.pickle:
                raise FormatError(f"{path}, data.pkl: found {info.file_size} bytes, wanted at most {limits.pickle}")
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise InvalidInput(f"{path}: reading files of torch.save needs torch (pip install torch)") from None
    for attempt in ("plain", "jagged"):
        try:
            with _only(torch.serialization, _stand_ins()), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about pickle protocols: not for people who convert
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # whatever torch makes of foreign bytes
            if attempt == "plain" and "torch._dynamo" in str(error):  # jagged tensors are known once these are imported
                importlib.import_module("torch.nested")
                importlib.import_module("torch._dynamo")
                continue
            raise FormatError(f"{path}: {_reason(error)}") from None
    raise AssertionError


def _reason(error: Exception) -> str:
    text = str(error)
    for marker in ("Unsupported global: GLOBAL ", "Unsupported class ", "Trying to load unsupported GLOBAL "):
        at = text.find(marker)
        if at >= 0:
            name = text[at + len(marker) :].split()[0]
            return f"found a Python object of type {shown(name)}, wanted plain values: {_ADVICE}"
    if "WeightsUnpickler" in text or "weights_only" in text.lower():
        tail = text.split("WeightsUnpickler error:")[-1].strip().splitlines() or [text]
        return f"found a pickle beyond plain values ({shown(tail[0])}): {_ADVICE}"
    return f"found a damaged file ({shown(text.splitlines()[0] if text else type(error).__name__)})"


def is_tensor(value: object) -> bool:
    """Whether a loaded value is an array of any kind."""
    return isinstance(value, (_Array, np.ndarray)) or (
        type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "dim")
    )


def array(value: Any, where: str) -> Array:
    """A loaded tensor as numpy, without copying. @raises FormatError for other types and for absurd strides."""
    if isinstance(value, _Array):
        if value.value is None:
            raise FormatError(f"{where}: found a numpy array of no plain integer type, wanted integers")
        return value.value
    if isinstance(value, np.ndarray):
        return value
    if not is_tensor(value):
        raise FormatError(f"{where}: found a {type(value).__name__}, wanted a tensor")
    try:
        if value.layout != importlib.import_module("torch").strided or value.is_nested:
            raise TypeError(f"layout {value.layout}")
        stored = value.untyped_storage().nbytes() // value.element_size()
        elements = value.numel()
        found: Array = value.detach().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise FormatError(
            f"{where}: found a tensor without plain values ({shown(str(error))}), wanted integers"
        ) from None
    if elements > stored:  # strides of 0 make a huge tensor of few bytes
        raise FormatError(f"{where}: found {list(value.shape)} on a smaller storage, wanted one value per index")
    return found


def count_tokens(value: Any, where: str) -> int:
    """The length of a list or one-dimensional tensor of token ids."""
    if isinstance(value, (list, tuple)):
        return len(value)
    tokens = array(value, where)
    if tokens.ndim != 1:
        raise FormatError(f"{where}: found shape {list(tokens.shape)}, wanted [tokens]")
    return len(tokens)


def tensors(path: Path, limits: Limits) -> tuple[dict[str, Tensor], None, dict[str, FormatError]]:
    """(tensors, no open file, refused tensors) of a saved dict. A jagged one becomes NAME.values and NAME.offsets."""
    value = load(path, limits)
    if is_tensor(value):
        value = {"": value}
    if not isinstance(value, dict):
        raise FormatError(f"{path}: found a {type(value).__name__}, wanted a dict of tensors")
    found: dict[str, Tensor] = {}
    refused: dict[str, FormatError] = {}

    def put(name: str, tensor: Any) -> None:
        where = named(path, name)
        try:
            view = array(tensor, where)
        except FormatError as error:
            refused[name] = error
            return
        found[name] = Tensor(where, view.dtype, view.shape, view)

    for name, tensor in value.items():
        if not isinstance(name, str) or not is_tensor(tensor):
            continue
        if not getattr(tensor, "is_nested", False):
            put(name, tensor)
            continue
        try:
            parts = tensor.values(), tensor.offsets()
        except (RuntimeError, AttributeError) as error:
            where = named(path, name)
            refused[name] = FormatError(
                f"{where}: found a nested tensor ({shown(str(error))}), wanted layout torch.jagged"
            )
            continue
        put(f"{name}.values", parts[0])
        put(f"{name}.offsets", parts[1])
    return found, None, refused
