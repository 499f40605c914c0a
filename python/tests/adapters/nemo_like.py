# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's shapes, as contracts.NEMO_RL records them: a batch that cuts itself, and a policy that asks it to.

Written for these tests; bins are filled in order of length. The same tests run on NeMo RL's own batch when
ROUTEPACK_NEMO_RL_CHECKOUT names it.
"""

from __future__ import annotations

import collections
from typing import Any

import torch


class BatchedDataDict(collections.UserDict[str, Any]):
    micro_batch_indices: Any = None
    micro_batch_lengths: Any = None
    elem_counts_per_gb: Any = None

    def select_indices(self, indices: Any) -> Any:
        return type(self)({k: v[indices] if torch.is_tensor(v) else [v[i] for i in indices] for k, v in self.items()})

    @classmethod
    def from_batches(cls, batches: Any) -> Any:
        made = cls()
        for key in batches[0]:
            values = [batch[key] for batch in batches]
            made[key] = torch.cat(values) if torch.is_tensor(values[0]) else [v for some in values for v in some]
        return made

    def reorder_data(self, order: list[int]) -> None:
        back = torch.tensor(order).argsort()
        for key, value in self.items():
            self[key] = value[back]

    def shard_by_batch_size(
        self, shards: int, batch_size: int | None = None, allow_uneven_shards: bool = False,
        dynamic_batching_args: Any = None, sequence_packing_args: Any = None,
    ) -> Any:  # fmt: skip
        total = len(next(iter(self.values())))
        size = batch_size or total
        assert total % size == 0 and size % shards == 0
        if sequence_packing_args is None:
            order = [c * size + i for s in range(shards) for c in range(total // size) for i in range(s, size, shards)]
            each = total // shards
            parts = [SlicedDataDict(self.select_indices(order[s * each : (s + 1) * each])) for s in range(shards)]
            return (parts, order) if dynamic_batching_args is not None else parts
        cap = sequence_packing_args["max_tokens_per_microbatch"]
        multiple = sequence_packing_args["sequence_length_pad_multiple"]
        lengths = self[sequence_packing_args["input_lengths_key"]].tolist()
        padded = [-(-n // multiple) * multiple for n in lengths]
        chosen: list[list[int]] = [[] for _ in range(shards)]
        spans: list[list[Any]] = [[] for _ in range(shards)]
        loads: list[list[Any]] = [[] for _ in range(shards)]
        counts: list[list[int]] = [[] for _ in range(shards)]
        for begin in range(0, total, size):
            bins: list[list[int]] = []
            for i in sorted(range(begin, begin + size), key=lambda i: -padded[i]):
                fits = next((b for b in bins if sum(padded[j] for j in b) + padded[i] <= cap), None)
                if fits is None:
                    bins.append(fits := [])
                fits.append(i)
            while len(bins) % shards:
                bins.append([max(bins, key=len).pop()])
            for s in range(shards):
                mine = bins[s::shards]
                ends = torch.tensor([len(b) for b in mine]).cumsum(0).tolist()
                chosen[s] += [i for b in mine for i in b]
                spans[s].append([[a, b] for a, b in zip([0, *ends], ends, strict=False)])
                loads[s].append([sum(padded[i] for i in b) for b in mine])
                counts[s].append(ends[-1])
        made = []
        for s in range(shards):
            made.append(SlicedDataDict(self.select_indices(chosen[s])))
            made[-1].micro_batch_indices, made[-1].micro_batch_lengths = spans[s], loads[s]
            made[-1].elem_counts_per_gb = counts[s]
        return made, [i for some in chosen for i in some]


class SlicedDataDict(BatchedDataDict):
    pass


class Policy:
    def __init__(self, cfg: dict[str, Any], ranks: int) -> None:
        self.cfg, self.data_parallel_size = cfg, ranks
        self.use_dynamic_batches = cfg["dynamic_batching"]["enabled"]
        self.use_sequence_packing = cfg["sequence_packing"]["enabled"]
        self.sequence_packing_args = {
            "algorithm": "modified_first_fit_decreasing", "input_key": "input_ids",
            "input_lengths_key": "input_lengths",
            "sequence_length_pad_multiple": cfg["make_sequence_length_divisible_by"],
        }  # fmt: skip

    def _shard_for_logprob(self, data: Any) -> Any:
        if not self.use_sequence_packing:
            return data.shard_by_batch_size(self.data_parallel_size, batch_size=None), None
        packing = {
            **self.sequence_packing_args,
            "max_tokens_per_microbatch": self.cfg["sequence_packing"]["logprob_mb_tokens"],
        }
        return data.shard_by_batch_size(self.data_parallel_size, batch_size=None, sequence_packing_args=packing)

    def _shard_for_train(self, data: Any, batch_size: int) -> Any:
        if not self.use_sequence_packing:
            return data.shard_by_batch_size(self.data_parallel_size, batch_size=batch_size)
        packing = {
            **self.sequence_packing_args,
            "max_tokens_per_microbatch": self.cfg["sequence_packing"]["train_mb_tokens"],
        }
        return data.shard_by_batch_size(
            self.data_parallel_size, batch_size=batch_size, sequence_packing_args=packing
        )[0]  # fmt: skip

    def train(self, data: Any, loss_fn: Any) -> dict[str, Any]:
        loss_fn(self._shard_for_train(data, self.cfg["train_global_batch_size"]))
        return {"loss": 0.0, "all_mb_metrics": {"lr": [1e-6]}}
