# SPDX-License-Identifier: Apache-2.0
"""A planner process that misbehaves as told. Usage: misbehaving.py HOW. It speaks the wire of the real one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from routepack.adapters import _wire, _worker


def _layout(change: Callable[[list[list[list[int]]]], object]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def changed(reply: dict[str, Any]) -> dict[str, Any]:
        for made in reply["plans"]:
            plan = json.loads(made["plan"])
            change(plan["layout"])
            plan["rows"] = len(plan["layout"])
            made["plan"] = json.dumps(plan)
        return reply

    return changed


def _twice(layout: list[list[list[int]]]) -> None:
    layout[0][0].append(layout[0][1][0])


def _missing(layout: list[list[list[int]]]) -> None:
    max((cell for row in layout for cell in row), key=len).pop()


def _one_row_less(layout: list[list[list[int]]]) -> None:
    layout.append([layout[0].pop()])


def _empty_cell(layout: list[list[list[int]]]) -> None:
    layout[0][1].extend(layout[0][0])
    layout[0][0].clear()


def _over_the_cap(layout: list[list[list[int]]]) -> None:
    for cell in [cell for row in layout for cell in row][1:]:
        while len(cell) > 1:
            layout[0][0].append(cell.pop())


def _unknown(layout: list[list[list[int]]]) -> None:
    layout[0][0][0] = 10**6


def _moves(reply: dict[str, Any]) -> dict[str, Any]:
    for made in reply["plans"]:
        plan = json.loads(made["plan"])
        plan["physical_to_logical"] = [layer[::-1] for layer in plan["physical_to_logical"]]
        made["plan"] = json.dumps(plan)
    return reply


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "duplicate sample": _layout(_twice),
    "missing sample": _layout(_missing),
    "unequal counts": _layout(_one_row_less),
    "empty cell": _layout(_empty_cell),
    "over the cap": _layout(_over_the_cap),
    "unknown sample": _layout(_unknown),
    "moved experts": _moves,
    "plan of another request": lambda reply: {**reply, "id": reply["id"] - 1},
    "too few plans": lambda reply: {**reply, "plans": reply["plans"][1:]},
    "plan that is none": lambda reply: {**reply, "plans": [{"plan": "{}", "metrics": {}} for _ in reply["plans"]]},
    "plans that are a word": lambda reply: {**reply, "plans": "none"},
    "a list": lambda reply: [reply],  # type: ignore[dict-item, return-value]
}


def main(how: str) -> None:
    wire = os.dup(1)
    os.dup2(2, 1)
    if how == "never ready":
        time.sleep(60)
    if how == "dies at once":
        sys.exit(3)
    os.write(wire, _wire.encode({"ready": True}))
    while True:
        request = _wire.read(0, None)
        if how == "raises":
            os.write(wire, _wire.encode({"id": request["id"], "error": "RuntimeError", "text": "out of luck"}))
        elif how == "stalls":
            time.sleep(60)
        elif how == "stalls and ignores":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                pass
        elif how == "kills itself":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "noise":
            os.write(wire, b"Traceback (most recent call last): nonsense and more nonsense")
        elif how == "half a frame":
            os.write(wire, _wire.encode(_worker.answer(request))[:100])
            time.sleep(60)
        elif how == "no JSON":
            os.write(wire, (5).to_bytes(8, "little") + b"{nope")
        else:
            os.write(wire, _wire.encode(CHANGES[how](_worker.answer(request))))


if __name__ == "__main__":
    main(sys.argv[1])
