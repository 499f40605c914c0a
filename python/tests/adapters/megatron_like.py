# SPDX-License-Identifier: Apache-2.0
"""Megatron's packing scheduler as far as an adapter sees it: a map of schedulers, and the function around them.

Written for these tests, for machines without a checkout of a Megatron-Core that has them. What it packs is arrival
order, next cell when the sample does not fit.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist


class Kind(enum.Enum):
    DP_BALANCED = "dp_balanced"


class Scheduler:
    def __init__(self, cap: int, cp_size: int, dp_size: int, group: int | None) -> None:
        self.max_seqlen_per_dp_cp_rank, self.cp_size, self.dp_size = cap, cp_size, dp_size
        self.microbatch_group_size_per_vp_stage = group

    def get_groups_and_subsamples(self, sample_id_seqlens: list[tuple[int, int]]) -> list[list[list[int]]]:
        cells: list[list[int]] = [[]]
        room = self.max_seqlen_per_dp_cp_rank
        for i, tokens in sample_id_seqlens:
            if tokens > room:
                cells.append([])
                room = self.max_seqlen_per_dp_cp_rank
            cells[-1].append(i)
            room -= tokens
        while len(cells) % self.dp_size:
            fullest = max(cells, key=len)
            cells.append([fullest.pop()])
        return [cells[begin : begin + self.dp_size] for begin in range(0, len(cells), self.dp_size)]

    def run(
        self, data_iterator: Any, num_microbatches: int, dp_group: Any, tp_group: Any, pp_group: Any, dp_cp_group: Any,
        dev: Any, config: Any,
    ) -> tuple[Iterator[dict[str, Any]], int, float, float]:  # fmt: skip
        mine = [sample for _ in range(num_microbatches) for sample in next(data_iterator)]
        everything: list[Any] = [None] * dp_group.size()
        dist.all_gather_object(everything, mine, group=dp_group)
        samples = [sample for some in everything for sample in some]
        lengths = [len(sample["tokens"]) for sample in samples]
        rows = self.get_groups_and_subsamples(list(enumerate(lengths)))
        packed = []
        for row in rows:
            cell = [samples[i] for i in row[dp_cp_group.rank()]]
            ends = torch.tensor([0, *(len(sample["tokens"]) for sample in cell)]).cumsum(0)
            packed.append({"tokens": torch.cat([s["tokens"] for s in cell]), "cu_seqlens_padded": ends})
        return iter(packed), len(rows), float(sum(lengths)), float(sum(n * n for n in lengths))


scheduler_map: dict[Kind, Any] = {Kind.DP_BALANCED: Scheduler}


def wrap_data_iterator(data_iterator: Any, config: Any, num_microbatches: int, pg_collection: Any) -> Any:
    groups = pg_collection
    cp = groups.dp_cp.size() // groups.dp.size()
    kind = Kind[config.sequence_packing_scheduler.upper()]
    scheduler = scheduler_map[kind](config.max_seqlen_per_dp_cp_rank, cp, groups.dp.size(), None)
    return scheduler.run(
        data_iterator, num_microbatches, groups.dp, groups.tp, groups.pp, groups.dp_cp, torch.device("cpu"), config
    )
