# SPDX-License-Identifier: Apache-2.0
"""slime, `--save-debug-train-data`, format_version 2: the samples as trained, and how slime packed them.

{format_version: 2, rollout_id, rank, samples: [{rollout_position, data_parallel_rank, tokens, …}], dp_shards: [{
data_parallel_rank, partition, micro_batch_indices, num_microbatches, global_batch_sizes}]}. With routing replay on, the
trainer deletes the routes before it writes this file, so that they come from the rollout dump of the same rollout
(option `rollout`), where `rollout_position` is the index. Source: slime/observability/train_data_utils.py,
slime/utils/dp_schedule.py and slime/backends/megatron_utils/actor.py at commit 624b824a.

`partition[d]` are sample positions of data-parallel rank d, `micro_batch_indices[d]` its cells as indices into the
partition, `num_microbatches[s]` how many of these belong to optimizer step s, on every rank the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from routepack.convert import io_torch, slime
from routepack.convert.errors import FormatError, InvalidInput, shown
from routepack.convert.options import Options, Path
from routepack.convert.sample import Sample

Layout = list[list[list[int]]]  #: [row][slot] -> samples


@dataclass(frozen=True)
class Schedule:
    """slime's own packing: per optimizer step a layout of sample positions."""

    steps: list[Layout]

    def step(self, options: Options, where: str) -> int:
        """The one step that is asked for: a window is one optimizer step."""
        wanted = options.steps
        if wanted is None and len(self.steps) == 1:
            return 0
        if wanted is None or len(wanted) != 1 or not 0 <= wanted[0] < len(self.steps):
            raise InvalidInput(
                f"{where}: found {len(self.steps)} optimizer steps, wanted the option step, "
                f"one of 0 to {len(self.steps) - 1}"
            )
        return wanted[0]


def _integers(value: Any, where: str) -> list[int]:
    if not isinstance(value, (list, tuple)) or any(type(n) is not int or n < 0 for n in value):
        raise FormatError(f"{where}: found {shown(value)}, wanted a list of indices")
    return list(value)


def schedule(value: dict[str, Any], where: str) -> Schedule:
    """Reads `dp_shards`. @raises FormatError when ranks disagree or a cell names no sample of its rank"""
    if value.get("format_version") != 2:
        raise FormatError(f"{where}, format_version: found {shown(value.get('format_version'))}, wanted 2")
    shards = value.get("dp_shards")
    if not isinstance(shards, list) or not shards or not all(isinstance(shard, dict) for shard in shards):
        raise FormatError(f"{where}, dp_shards: found {shown(shards)}, wanted a list with one entry per rank")
    by_rank: dict[int, dict[str, Any]] = {}
    for shard in shards:
        rank = shard.get("data_parallel_rank")
        if type(rank) is not int or not 0 <= rank < len(shards) or rank in by_rank:
            raise FormatError(
                f"{where}, dp_shards: found data_parallel_rank {shown(rank)}, wanted 0 to {len(shards) - 1}, once each"
            )
        by_rank[rank] = shard
    per_step = _integers(by_rank[0].get("num_microbatches"), f"{where}, dp_shards[0].num_microbatches")
    cells: list[list[list[int]]] = []  # [slot][cell] -> sample positions
    for rank in range(len(shards)):
        at = f"{where}, dp_shards[{rank}]"
        partition = _integers(by_rank[rank].get("partition"), f"{at}.partition")
        batches = by_rank[rank].get("micro_batch_indices")
        if not isinstance(batches, list) or len(batches) != sum(per_step) or not batches:
            found = len(batches) if isinstance(batches, list) else shown(batches)
            raise FormatError(f"{at}.micro_batch_indices: found {found} cells, wanted {max(sum(per_step), 1)}")
        if _integers(by_rank[rank].get("num_microbatches"), f"{at}.num_microbatches") != per_step:
            raise FormatError(f"{at}.num_microbatches: found other numbers than rank 0, wanted {shown(per_step)}")
        local = [_integers(batch, f"{at}.micro_batch_indices[{j}]") for j, batch in enumerate(batches)]
        if sorted(i for batch in local for i in batch) != list(range(len(partition))):
            raise FormatError(f"{at}.micro_batch_indices: found no exact cover of its {len(partition)} samples")
        cells.append([[partition[i] for i in batch] for batch in local])
    trained = [position for slot in cells for cell in slot for position in cell]
    if len(set(trained)) != len(trained):
        raise FormatError(f"{where}, dp_shards: found a sample on two ranks, wanted every sample once")
    steps, start = [], 0
    for rows in per_step:
        steps.append([[slot[r] for slot in cells] for r in range(start, start + rows)])
        start += rows
    return Schedule(steps)


def load(path: Path, options: Options) -> dict[str, Any]:
    """The dump as a dict."""
    value = io_torch.load(path, options.limits)
    if not isinstance(value, dict):
        raise FormatError(f"{path}: found a {type(value).__name__}, wanted a train dump of slime")
    return value


def order(layout: Layout) -> list[int]:
    """Sample positions of a step in window order: ascending."""
    return sorted(position for row in layout for cell in row for position in cell)


def read(path: Path, options: Options) -> Iterator[Sample]:
    """Samples of one optimizer step, ascending by rollout position."""
    value = load(path, options)
    steps = schedule(value, str(path))
    positions = order(steps.steps[steps.step(options, str(path))])
    by_position = {s.get("rollout_position"): s for s in slime.sample_dicts(value, str(path))}
    beside: list[dict[str, Any]] | None = None
    if options.rollout is not None:
        beside = slime.sample_dicts(io_torch.load(options.rollout, options.limits), str(options.rollout))
    for position in positions:
        where = f"{path}: sample at rollout_position {position}"
        sample = by_position.get(position)
        if sample is None:
            raise FormatError(f"{where}: found nothing, wanted a sample")
        tokens = io_torch.count_tokens(sample.get("tokens"), f"{where}, tokens")
        source = sample
        if beside is not None and sample.get(slime.KEY) is None:
            source = _beside(beside, position, tokens, options.rollout)
        elif sample.get(slime.KEY) is None:
            raise FormatError(
                f"{where}, {slime.KEY}: found nothing (replay deletes it before the dump), wanted the option rollout "
                "with the rollout dump of the same step"
            )
        routes = slime.routes_of(source, tokens, where, options.limits)
        group = slime.group_of(source, "group_index")
        yield Sample(where, slime.KEY, tokens, routes, group=group, id=slime.id_of(sample, "sample_index"))


def _beside(samples: list[dict[str, Any]], position: int, tokens: int, path: Path | None) -> dict[str, Any]:
    where = f"{path}: sample {position}"
    if position >= len(samples):
        raise FormatError(f"{where}: found {len(samples)} samples, wanted this one: another rollout")
    there = io_torch.count_tokens(samples[position].get("tokens"), f"{where}, tokens")
    if there != tokens:
        raise FormatError(f"{where}, tokens: found {there}, wanted {tokens}, as in the train dump: another rollout")
    return samples[position]
