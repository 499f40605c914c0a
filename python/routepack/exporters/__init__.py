# SPDX-License-Identifier: Apache-2.0
"""Plans in the shapes that training frameworks take. Pure functions: nothing here imports a framework.

    from routepack.exporters import slime
    partitions, micro_batch_indices, num_microbatches, global_batch_sizes = slime(plan, lengths=window.lengths)

Each checks what its framework needs and, where a plan cannot serve, raises `InvalidInput` that says what to change.
"""

from routepack.exporters._areal import ArealDispatch, areal
from routepack.exporters._megatron import megatron
from routepack.exporters._nemo_rl import NemoShard, nemo_rl
from routepack.exporters._slime import SlimeSchedule, slime
from routepack.exporters._verl import VerlBatch, verl

__all__ = [
    "ArealDispatch",
    "NemoShard",
    "SlimeSchedule",
    "VerlBatch",
    "areal",
    "megatron",
    "nemo_rl",
    "slime",
    "verl",
]
