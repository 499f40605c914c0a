# SPDX-License-Identifier: Apache-2.0
"""How much of a file is believed before it is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds in bytes on what one piece of input may take in memory. They stop bombs, not honest files."""

    sample: int = 2 << 30  #: the raw routes of one sample, one line of JSON, or one inflated array
    header: int = 16 << 10  #: an npy header
    safetensors_header: int = 32 << 20
    pickle: int = 512 << 20  #: the object graph of a torch archive, without its tensors
    members: int = 1 << 20  #: entries of an archive
    inflate_free: int = 64 << 20  #: an array may always inflate to this size …
    inflate_ratio: int = 300  #: … and beyond it to at most this many times its packed size
