# SPDX-License-Identifier: Apache-2.0
"""What a driver can see of a checkpoint before workers are made: whether its experts had moved.

Megatron keeps optimizer state in the order of slots. A worker without RoutePack's hooks would load it in silence, and
give experts the state of others. Neither torch nor Megatron is needed here.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys

from routepack._errors import Error
from routepack.adapters import _dist_checkpoint
from routepack.adapters._placements import home_of
from routepack.transfer.checkpoint import STAMP, load_placement, placement_path


def away(checkpoint: str | os.PathLike[str]) -> str:
    """Why a checkpoint needs workers that know where experts are, in one line; "": it does not, or is not there.

    :param checkpoint: the folder with its files, such as `iter_0000010`, or the folder around it, of which all
        iterations count
    """
    folder = pathlib.Path(checkpoint)
    for one in (folder, *sorted(folder.glob("iter_*"))):
        if why := _away(one):
            return why
    return ""


def _away(folder: pathlib.Path) -> str:
    if not folder.is_dir():
        return ""
    path = placement_path(folder)
    if not path.is_file():
        return f"{path}: found no file, though the checkpoint was saved with one" if _stamped(folder) else ""
    try:
        placement = load_placement(folder).placement
    except Error as error:
        return str(error)
    if placement == home_of(placement):
        return ""
    return f"{path}: found experts that had moved when the checkpoint was saved"


def _stamped(folder: pathlib.Path) -> bool:
    common = folder / "common.pt"  # a pickle in a zip that is not compressed
    if common.is_file():
        with contextlib.suppress(OSError):
            return STAMP.encode() in common.read_bytes()
    if "megatron.core.dist_checkpointing" in sys.modules:  # newer ones keep common state elsewhere
        with contextlib.suppress(Exception):
            return _dist_checkpoint.stamp_of(folder) is not None
    return False


__all__ = ["away"]
