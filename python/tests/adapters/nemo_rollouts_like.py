# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's data plane, as contracts.NEMO_RL_DATA_PLANE records it: a queue, an actor that rolls out, and a policy that
cuts names of samples.

Written for these tests. The same is tried on NeMo RL's own classes when ROUTEPACK_NEMO_RL_CHECKOUT names it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from . import nemo_like

TOKEN_ALIGNED = {"input_ids", "token_mask", "routed_experts"}


@dataclasses.dataclass
class Meta:
    partition_id: str
    sample_ids: list[str]
    fields: list[str]
    sequence_lengths: list[int]
    extra_info: dict[str, Any] = dataclasses.field(default_factory=dict)

    def concat(self, other: Meta) -> Meta:
        return dataclasses.replace(
            self,
            sample_ids=self.sample_ids + other.sample_ids,
            sequence_lengths=self.sequence_lengths + other.sequence_lengths,
        )


class Client:
    """A queue in one process: rows of named fields for each sample."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.reads: list[list[str]] = []

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: dict[str, Any]) -> None:
        for i, name in enumerate(sample_ids):
            self.rows.setdefault(name, {}).update({field: values[i] for field, values in fields.items()})

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        self.reads.append(list(select_fields))
        made: dict[str, Any] = {}
        for field in select_fields:
            values = [self.rows[name][field] for name in sample_ids]
            even = all(value.shape == values[0].shape for value in values)
            made[field] = torch.stack(values) if even else torch.nested.as_nested_tensor(values, layout=torch.jagged)
        return made

    def column(self, meta: Meta, field: str) -> Any:
        """Of all samples, and no read of the driver's."""
        return torch.stack([self.rows[name][field] for name in meta.sample_ids])


def kv_first_write(
    final_batch_cpu: Any, *, sample_ids: Any, dp_client: Any, partition_id: str, extra_info: Any = None,
    task_name: str = "train", pad_to_multiple: int = 1, tags: Any = None,
) -> Meta:  # fmt: skip
    lengths = final_batch_cpu["input_lengths"].tolist()
    fields = {
        name: [row[: lengths[i]] if name in TOKEN_ALIGNED else row for i, row in enumerate(values)]
        for name, values in final_batch_cpu.items()
        if torch.is_tensor(values)
    }
    dp_client.put_samples(sample_ids=list(sample_ids), partition_id=partition_id, fields=fields)
    return Meta(partition_id, list(sample_ids), list(fields), lengths, dict(extra_info or {}))


class SyncRolloutActor:
    def __init__(self, master_config: Any, client: Any) -> None:
        self.master_config, self._dp_client = master_config, client
        self.rolled_out = 0

    def rollout_to_tq(self, input_batch: Any, *, partition_id: str, group_size: int = 1) -> Any:
        self.rolled_out += 1
        if input_batch is None:
            raise ValueError("found no prompts")
        samples = [f"{self.rolled_out}_g{i}" for i in range(len(input_batch["input_lengths"]))]
        meta = kv_first_write(input_batch, sample_ids=samples, dp_client=self._dp_client, partition_id=partition_id)
        return meta, {"input_lengths": input_batch["input_lengths"]}, {}, None


class TQPolicy(nemo_like.Policy):
    """`batch` of a subclass is the class of the batch that cuts."""

    batch: Any = None

    def __init__(self, cfg: dict[str, Any], ranks: int, client: Any) -> None:
        super().__init__(cfg, ranks)
        self.dp_client = client
        self._router_replay_enabled = bool(cfg["router_replay"]["enabled"])

    def read_from_dataplane(self, meta: Meta, *, select_fields: list[str]) -> dict[str, Any]:
        stored = self.dp_client.get_samples(
            sample_ids=meta.sample_ids, partition_id=meta.partition_id, select_fields=select_fields
        )
        return {
            name: torch.nested.to_padded_tensor(some, padding=0) if some.is_nested else some
            for name, some in stored.items()
        }

    def _cut(self, meta: Meta, batch_size: int | None) -> Any:
        names = self.batch(
            {
                "input_ids": torch.zeros(len(meta.sample_ids), 1, dtype=torch.int64),
                "input_lengths": torch.tensor(meta.sequence_lengths),
                "idx": list(range(len(meta.sample_ids))),
            }
        )
        packing = {
            **self.sequence_packing_args,
            "max_tokens_per_microbatch": self.cfg["sequence_packing"]["train_mb_tokens"],
        }
        return names.shard_by_batch_size(self.data_parallel_size, batch_size=batch_size, sequence_packing_args=packing)

    def _logprob_dispatch(self, meta: Meta) -> Any:
        return self._cut(meta, None)

    def train_from_meta(self, meta: Meta) -> Any:
        return {"cut": self._cut(meta, self.cfg["train_global_batch_size"]), "all_mb_metrics": {}}
