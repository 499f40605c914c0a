# SPDX-License-Identifier: Apache-2.0
"""One sample that was generated in several requests.

An interrupted or multi-turn rollout continues with a request whose prompt is everything so far. The engine answers with
routes from token 0 (or from `routed_experts_start_len`) on, so two segments repeat a prefix. Appending them row after
row, as a plain concatenation does, counts the prefix once per segment. The later segment is the truth for the rows it
covers: it also holds the route of the token that ended the earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from routepack.convert.errors import FormatError
from routepack.convert.sample import Sample


@dataclass
class Joined:
    """The sample so far."""

    sample: Sample

    def extend(self, later: Sample) -> None:
        """Adds a later segment of the same sample. @raises FormatError when rows between the two are lacking."""
        before = self.sample
        if later.tokens < before.tokens:
            raise FormatError(
                f"{later.where}: found {later.tokens} tokens in a later segment, wanted at least {before.tokens}, "
                f"as in {before.where}"
            )
        if later.routes is None:
            self.sample = replace(before, tokens=later.tokens)
            return
        if later.first_row == 0 or before.routes is None:
            self.sample = replace(later, group=before.group, id=before.id)
            return
        end = before.first_row + len(before.routes)
        if not before.first_row <= later.first_row <= end:
            raise FormatError(
                f"{later.where}, {later.key}: found rows from token {later.first_row} on, wanted at most {end}, where "
                f"{before.where} ends"
            )
        if later.routes.shape[1:] != before.routes.shape[1:]:
            raise FormatError(
                f"{later.where}, {later.key}: found {list(later.routes.shape[1:])} layers and top_k, wanted "
                f"{list(before.routes.shape[1:])}, as in {before.where}"
            )
        kept = before.routes[: later.first_row - before.first_row]
        self.sample = replace(
            later,
            routes=np.concatenate([kept, later.routes]),
            first_row=before.first_row,
            group=before.group,
            id=before.id,
        )
