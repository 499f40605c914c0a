# SPDX-License-Identifier: Apache-2.0
"""What a driver saves that reads counts from TransferQueue instead of routes: samples of a Qwen3-30B-A3B.

`python -m adapters.measure_counts [samples] [tokens]` in python/tests. Needs verl, Ray and TransferQueue.
"""

from __future__ import annotations

import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transfer_queue
from omegaconf import OmegaConf
from on_ray.ray_cluster import local_cluster
from tensordict import TensorDict

from routepack.adapters import verl, verl_rollouts

LAYERS, EXPERTS, TOP_K = 48, 128, 8


def main(samples: int = 256, tokens: int = 2048) -> None:
    draw = np.random.default_rng(0)
    first = draw.integers(0, EXPERTS, (samples, tokens, LAYERS, 1), dtype=np.int16)
    routes = torch.from_numpy((first + np.arange(0, EXPERTS, EXPERTS // TOP_K, dtype=np.int16)) % EXPERTS)
    routes[:, -1] = 0
    begin = time.perf_counter()
    counts = np.stack([verl_rollouts.counts_of(some[:-1], EXPERTS) for some in routes])
    each = 1e3 * (time.perf_counter() - begin) / samples
    chosen = OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 2}}})
    transfer_queue.init(chosen)  # its default waits for more processors than there are
    names = [f"s{i}" for i in range(samples)]
    for i in range(0, samples, 16):
        fields = {verl.ROUTES: routes[i : i + 16], verl.COUNTS: torch.from_numpy(counts[i : i + 16])}
        transfer_queue.kv_batch_put(
            keys=names[i : i + 16], partition_id="train", fields=TensorDict(fields, batch_size=len(names[i : i + 16]))
        )
    batch = types.SimpleNamespace(keys=names, tags=[{"seq_len": tokens}] * samples, partition_id="train")
    source, lengths = verl._Stored(transfer_queue), np.full(samples, tokens, dtype=np.int64)
    before, there = timed(lambda: verl._counted_before(source, batch, lengths, EXPERTS))
    here, counted = timed(lambda: verl._counted_here(source, batch, lengths, EXPERTS))
    assert there is not None and there[1] == counted[1] == TOP_K
    for one, other in zip(there[0], counted[0], strict=True):
        assert np.array_equal(one.counts, other.counts) and np.array_equal(one.recorded, other.recorded)
    sizes = f"{routes.nbytes / 1e6:.0f} MB of routes, {counts.nbytes / 1e6:.1f} MB of counts"
    print(f"{samples} samples of {tokens} tokens: {sizes}")
    print(f"counted where a rollout ends: {each:.2f} ms each")
    print(f"the driver reads counts: {before:.0f} ms; reads routes and counts them: {here:.0f} ms")
    transfer_queue.close()


def timed(what: Callable[[], Any]) -> tuple[float, Any]:
    took, made = [], None
    for _ in range(5):
        begin = time.perf_counter()
        made = what()
        took.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(took), made


if __name__ == "__main__":
    with local_cluster(cpus=5, store_mb=1024):
        main(*(int(word) for word in sys.argv[1:]))
