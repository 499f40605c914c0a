# SPDX-License-Identifier: Apache-2.0
"""The placement beside a checkpoint whose experts lie in the order of slots."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from routepack._core import Placement
from routepack._errors import InvalidInput

FILE = "routepack-placement.json"
STAMP = "routepack_placement"


class PlacementMismatch(InvalidInput):
    """A checkpoint in the order of slots whose placement is missing or another one. Loading it would give experts the
    state of others."""


class SavedPlacement(NamedTuple):
    placement: Placement
    epoch: int


def placement_path(checkpoint: str | os.PathLike[str]) -> pathlib.Path:
    """Inside a checkpoint that is a folder, beside one that is a file.

    >>> placement_path("iter_0000010/model.pt").as_posix()
    'iter_0000010/model.pt.routepack-placement.json'
    """
    path = pathlib.Path(checkpoint)
    return path / FILE if path.is_dir() else path.with_name(f"{path.name}.{FILE}")


def stamp(placement: Placement, epoch: int) -> dict[str, Any]:
    """What to keep in the checkpoint itself, in its common state under any key, so that a placement file of another
    checkpoint is recognised.

    >>> stamp(Placement.identity(layers=1, experts=2, ranks=2), epoch=3)["epoch"]
    3
    """
    return {"fingerprint": placement.fingerprint, "epoch": epoch}


def save_placement(checkpoint: str | os.PathLike[str], placement: Placement, epoch: int) -> pathlib.Path:
    """Writes a `routepack.placement/1` file beside a checkpoint, whole or not at all. One rank does.

    :raises InvalidInput: for a negative epoch
    :raises IoError: when the file cannot be written

    >>> save_placement("model.pt", Placement.identity(layers=1, experts=2, ranks=2), epoch=3).name
    'model.pt.routepack-placement.json'
    """
    path = placement_path(checkpoint)
    placement.save(path, epoch=epoch)
    return path


def load_placement(
    checkpoint: str | os.PathLike[str],
    *,
    stamped: Mapping[str, Any] | None = None,
    shape: Placement | None = None,
) -> SavedPlacement:
    """The placement under which a checkpoint in the order of slots was saved.

    :param stamped: what `stamp` put into the checkpoint; fingerprint and epoch must agree
    :param shape: a placement of the trainer that loads; layers, experts and ranks must agree
    :raises PlacementMismatch: when the file is missing, is not whole, or is that of another checkpoint or model

    >>> placement = Placement.identity(layers=1, experts=2, ranks=2)
    >>> _ = save_placement("model.pt", placement, epoch=3)
    >>> load_placement("model.pt", stamped=stamp(placement, epoch=3)).epoch
    3
    >>> load_placement("model.pt", stamped=stamp(placement, epoch=4))
    Traceback (most recent call last):
    routepack.transfer.checkpoint.PlacementMismatch: model.pt.routepack-placement.json: found epoch 3, wanted 4, as in the checkpoint
    """
    path = placement_path(checkpoint)
    if not path.is_file():
        raise PlacementMismatch(f"{path}: found no file, wanted the placement under which the checkpoint was saved")
    try:
        placement = Placement.load(path)  # checks the fingerprint against the maps
        content = json.loads(path.read_text(encoding="utf-8"))
    except InvalidInput as error:
        raise PlacementMismatch(str(error)) from error
    for key in ("fingerprint", "epoch"):
        if key not in content:
            raise PlacementMismatch(f"{path}: found no {key}, wanted fingerprint and epoch")
    if shape is not None:
        found = (placement.layers, placement.experts, placement.ranks)
        wanted = (shape.layers, shape.experts, shape.ranks)
        if found != wanted:
            raise PlacementMismatch(f"{path}: found {list(found)} layers, experts and ranks, wanted {list(wanted)}")
    if stamped is not None:
        for key, value in (("fingerprint", placement.fingerprint), ("epoch", content["epoch"])):
            if key not in stamped:
                raise PlacementMismatch(f"{checkpoint}: found a stamp without {key}, wanted fingerprint and epoch")
            if stamped[key] != value:
                raise PlacementMismatch(f"{path}: found {key} {value}, wanted {stamped[key]}, as in the checkpoint")
    return SavedPlacement(placement, int(content["epoch"]))
