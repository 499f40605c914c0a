# SPDX-License-Identifier: Apache-2.0
"""slime's shapes, as contracts.SLIME records them: a manager that asks a schedule builder and cuts the batch by it.

Written for these tests. What it packs is arrival order, first cell that holds the sample; what counts is what goes in
and comes out. The same tests run on slime's own code when ROUTEPACK_SLIME_CHECKOUT names it.
"""

from __future__ import annotations

from typing import Any


def build_dp_schedule(
    args: Any, train_parallel_config: dict[str, int], total_lengths: list[int], *, global_batch_size: int,
    rollout_indices: list[int],
) -> tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]:  # fmt: skip
    ranks, cap = train_parallel_config["dp_size"], args.max_tokens_per_gpu * train_parallel_config["cp_size"]
    virtual = train_parallel_config["vpp_size"] > 1
    multiple = ranks * (train_parallel_config["microbatch_group_size_per_vp_stage"] if virtual else 1)
    rollouts = list(dict.fromkeys(rollout_indices))
    partitions: list[list[int]] = [[] for _ in range(ranks)]
    indices: list[list[list[int]]] = [[] for _ in range(ranks)]
    rows: list[int] = []
    for step in range(len(rollouts) // global_batch_size):
        chosen = set(rollouts[step * global_batch_size : (step + 1) * global_batch_size])
        cells: list[list[int]] = []
        for sample in (i for i, rollout in enumerate(rollout_indices) if rollout in chosen):
            room = (c for c in cells if sum(total_lengths[i] for i in c) + total_lengths[sample] <= cap)
            cell = next(room, None)
            if cell is None:
                cells.append(cell := [])
            cell.append(sample)
        while len(cells) % multiple:
            fullest = max((c for c in cells if len(c) > 1), key=lambda c: sum(total_lengths[i] for i in c))
            cells.append([fullest.pop()])
        rows.append(len(cells) // ranks)
        for number, cell in enumerate(cells):
            begin = len(partitions[number % ranks])
            partitions[number % ranks].extend(cell)
            indices[number % ranks].append(list(range(begin, begin + len(cell))))
    return partitions, indices, rows, [global_batch_size] * len(rows)


class RolloutManager:
    def __init__(self, args: Any, parallel: dict[str, int]) -> None:
        self.args, self.train_parallel_config, self.rollout_id = args, parallel, 0

    def _split_train_data_by_dp(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        lengths = [len(tokens) for tokens in data["tokens"]]
        data["total_lengths"] = lengths
        partitions, indices, rows, sizes = build_dp_schedule(
            self.args, self.train_parallel_config, lengths, global_batch_size=self.args.global_batch_size,
            rollout_indices=data["rollout_ids"],
        )  # fmt: skip
        parts = []
        for partition, cells in zip(partitions, indices, strict=True):
            part = {key: [data[key][i] for i in partition] for key in data if key != "total_lengths"}
            part |= {"partition": partition, "micro_batch_indices": cells, "num_microbatches": rows}
            parts.append(part | {"global_batch_sizes": sizes, "total_lengths": lengths})
        return parts
