# SPDX-License-Identifier: Apache-2.0
"""The packing that slime used, as a `routepack.plan/1` file, to score it and compare it with others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from routepack._files import write_text
from routepack.convert import slime_train
from routepack.convert.errors import InvalidInput, shown
from routepack.convert.options import Options, Path


@dataclass(frozen=True)
class PlanOptions:
    """What slime's dump does not say. `cost` is a `routepack.CostModel`; `cap` None: the fullest cell."""

    ep: int
    cost: Any
    shards: Sequence[Sequence[int]] | None = None
    cap: int | None = None


def plan(path: Path, options: Options, how: PlanOptions, *, lengths: Sequence[int], layers: int, experts: int,
         fingerprint: str | None) -> dict[str, Any]:  # fmt: skip
    """The plan of one step, for the window that `slime_train.read` makes of the same step: experts at home (identity).

    lengths: tokens per sample of that window.
    """
    schedule = slime_train.schedule(slime_train.load(path, options), str(path))
    layout = schedule.steps[schedule.step(options, str(path))]
    index = {position: i for i, position in enumerate(slime_train.order(layout))}
    if len(index) != len(lengths):
        raise InvalidInput(f"{path}: found {len(index)} samples in the step, wanted {len(lengths)}, as in the window")
    cells = [[[index[position] for position in cell] for cell in row] for row in layout]
    fullest = max(sum(int(lengths[i]) for i in cell) for row in cells for cell in row)
    if how.ep < 1 or experts % how.ep:
        raise InvalidInput(f"option ep: found {how.ep}, wanted a divisor of {experts}, the number of experts")
    slots = len(layout[0])
    shards = [list(shard) for shard in how.shards] if how.shards is not None else [list(range(slots))]
    if sorted(slot for shard in shards for slot in shard) != list(range(slots)) or not all(shards):
        raise InvalidInput(f"option shards: found {shown(shards)}, wanted the slots 0 to {slots - 1}, once each")
    window: dict[str, Any] = {"samples": len(lengths), "layers": layers, "experts": experts}
    if fingerprint is not None:
        window["fingerprint"] = fingerprint
    cap = fullest if how.cap is None else how.cap
    return {
        "format": "routepack.plan/1",
        "window": window,
        "topology": {"ep": how.ep, "shards": shards},
        "capacity": cap,
        # slime gives a sample above the cap a cell of its own
        "constraints": {"oversized": "own-cell"} if fullest > cap else {},
        "cost": {
            "stages": [{"name": s.name, "alpha": s.alpha, "beta": s.beta} for s in how.cost.stages],
            "expert": how.cost.expert[0] if len(how.cost.expert) == 1 else list(how.cost.expert),
        },
        "sync": "step",
        "rows": len(cells),
        "physical_to_logical": [list(range(experts)) for _ in range(layers)],
        "layout": cells,
    }


def save(value: dict[str, Any], path: Path) -> None:
    """Writes a plan; the file appears whole or not at all. @raises IoError"""
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    write_text(path, text)
