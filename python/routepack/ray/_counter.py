# SPDX-License-Identifier: Apache-2.0
"""What a rollout worker holds of the counting actors."""

from __future__ import annotations

import collections
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from routepack._core import Window
from routepack._errors import InvalidInput
from routepack.ray._answers import fetched
from routepack.ray._samples import Sample, plain_samples

NAMESPACE = "routepack"
_PAUSE_S = 0.2  # before an actor that is starting again is asked once more
_MOST_WAITING = 32  # batches on their way; one more waits for the first


@dataclass
class Added:
    """What became of samples."""

    counted: int = 0
    refused: dict[int, str] = field(default_factory=dict)  #: by id, why not: one line
    lost: int = 0  #: samples that no actor took in time

    def __iadd__(self, other: Added) -> Added:
        self.counted += other.counted
        self.refused.update(other.refused)
        self.lost += other.lost
        return self


@dataclass
class _Batch:
    """Samples on their way. Their bytes stay in the object store, owned by this process, until an actor has them."""

    method: str
    arguments: tuple[Any, ...]
    samples: int
    actor: int
    reply: Any


class Counter:
    """Sends samples to a counting actor, and to the next one while that is gone. Not for several threads at once.

    No fault of an actor raises here: a rollout goes on without plans. What is sent twice is counted once.
    """

    def __init__(self, actors: Sequence[Any], index: int = 0) -> None:
        """Made by `RayPlanning.counters` and `find_counter`; can be pickled."""
        self._actors = list(actors)
        self.index = index
        self._waiting: collections.deque[_Batch] = collections.deque()
        self._settled = Added()

    def __reduce__(self) -> tuple[Any, ...]:
        return Counter, (self._actors, self.index)

    def add(self, window: Hashable, samples: Sequence[Sample], *, timeout_s: float = 30.0) -> Added:
        """Counts samples, and returns when they are counted. The same id again replaces what was counted for it."""
        return self._settle(self._sent("add", window, samples), time.monotonic() + timeout_s)

    def send(self, window: Hashable, samples: Sequence[Sample]) -> None:
        """Begins to count samples. They count once `flush` has returned, and must be before the driver plans them."""
        while len(self._waiting) >= _MOST_WAITING:
            self._settled += self._settle(self._waiting.popleft(), time.monotonic() + 30.0)
        self._waiting.append(self._sent("add", window, samples))

    def flush(self, *, timeout_s: float = 30.0) -> Added:
        """Waits for all that was sent, and says what became of it since the last time."""
        until = time.monotonic() + timeout_s
        while self._waiting:
            self._settled += self._settle(self._waiting.popleft(), until)
        settled, self._settled = self._settled, Added()
        return settled

    def add_window(self, window: Hashable, counted: Window, *, timeout_s: float = 30.0) -> Added:
        """Hands over samples that are counted already: a window with ids."""
        if counted.ids is None or counted.lengths is None:
            raise InvalidInput("window: found one without ids, wanted samples with ids")
        arrays = (np.asarray(counted.ids), np.asarray(counted.lengths), counted.counts, counted.recorded)
        references = tuple(ray.put(array) for array in arrays)
        batch = self._call(_Batch("add_counts", (window, *references), counted.samples, self.index, None))
        return self._settle(batch, time.monotonic() + timeout_s)

    def _sent(self, method: str, window: Hashable, samples: Sequence[Sample]) -> _Batch:
        payload = ray.put(plain_samples(samples))
        return self._call(_Batch(method, (window, payload), len(samples), self.index, None))

    def _call(self, batch: _Batch) -> _Batch:
        actor = self._actors[batch.actor % len(self._actors)]
        try:
            batch.reply = getattr(actor, batch.method).remote(*batch.arguments)
        except RayError:
            batch.reply = None  # known to be dead
        return batch

    def _settle(self, batch: _Batch, until: float) -> Added:
        failures = 0
        while True:
            left = until - time.monotonic()
            if batch.reply is not None and (left > 0 or not failures):
                # A stalled actor must leave time to ask another one.
                answer, error = fetched(batch.reply, left if failures else 0.6 * left)
                if error is None:
                    return Added(*answer)
            failures += 1
            left = until - time.monotonic()
            if left <= 0:
                return Added(lost=batch.samples)
            if failures % len(self._actors) == 0:
                time.sleep(min(_PAUSE_S, left))
            batch.actor += 1
            self._call(batch)


def find_counter(name: str, index: int = 0) -> Counter:
    """A counter of the job that was started with this name, from any job on the cluster.

    :raises InvalidInput: when there is none
    """
    prefix = f"{name}/counter/"
    found = [
        int(entry["name"][len(prefix) :])
        for entry in ray.util.list_named_actors(all_namespaces=True)
        if entry["namespace"] == NAMESPACE and entry["name"].startswith(prefix)
    ]
    actors = []
    for number in sorted(found):
        try:
            actors.append(ray.get_actor(f"{prefix}{number}", namespace=NAMESPACE))
        except ValueError:
            continue  # it ended meanwhile
    if not actors:
        raise InvalidInput(f"name: found no counters of {name!r} on this cluster")
    return Counter(actors, index)
