# SPDX-License-Identifier: Apache-2.0
"""What adapters ask of placements."""

from __future__ import annotations

from routepack._core import Placement
from routepack._errors import InvalidInput


def home_of(placement: Placement) -> Placement:
    """Of the same shape, with every expert in the slot of its own number."""
    return Placement.identity(layers=placement.layers, experts=placement.experts, ranks=placement.ranks)


def shape_of(placement: Placement) -> tuple[int, int, int]:
    """Layers, experts and ranks."""
    return placement.layers, placement.experts, placement.ranks


def expect_shape(placement: Placement, here: Placement, hint: str = "") -> None:
    """A placement is one of the same model and ranks. @raises InvalidInput, with a hint"""
    found, wanted = shape_of(placement), shape_of(here)
    if found != wanted:
        raise InvalidInput(
            f"found a placement of {list(found)} layers, experts and ranks, wanted {list(wanted)} as in the model{hint}"
        )
