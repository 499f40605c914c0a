# SPDX-License-Identifier: Apache-2.0
"""Adam whose state is sharded over lanes by Megatron-Core's rules for flat buffers, in its smallest form."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.distributed as dist

RATE, BETA1, BETA2, EPSILON, DECAY = 3e-3, 0.9, 0.95, 1e-5, 0.01


def adam(master: torch.Tensor, grad: torch.Tensor, exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor, step: int) -> None:
    """One step in place, element by element."""
    exp_avg.mul_(BETA1).add_(grad * (1 - BETA1))
    exp_avg_sq.mul_(BETA2).add_(grad * grad * (1 - BETA2))
    scale = (exp_avg_sq / (1 - BETA2**step)).sqrt_().add_(EPSILON)
    master.mul_(1 - RATE * DECAY).sub_(exp_avg / scale * (RATE / (1 - BETA1**step)))


@dataclasses.dataclass(frozen=True)
class Span:
    """Where a parameter lies in a buffer."""

    begin: int
    end: int
    bucket: int


def lay_out(sizes: list[int], lanes: int, bucket_elements: int | None) -> tuple[list[Span], list[tuple[int, int]]]:
    """Spans of parameters given in order of registration, and the buckets.

    Parameters from last to first; starts padded to 64; a bucket closes once it holds `bucket_elements`; its end is
    padded so that lanes get equal parts.
    """
    multiple = math.lcm(lanes, 128)
    spans: list[Span] = []
    buckets: list[tuple[int, int]] = []
    at = bucket_begin = 0
    for size in reversed(sizes):
        at = -(-at // 64) * 64
        spans.append(Span(at, at + size, len(buckets)))
        at += size
        if bucket_elements is not None and at - bucket_begin >= bucket_elements:
            at = -(-at // multiple) * multiple
            buckets.append((bucket_begin, at))
            bucket_begin = at
    if not buckets or spans[-1].bucket == len(buckets):
        buckets.append((bucket_begin, -(-at // multiple) * multiple))
    return spans[::-1], buckets


class FlatBuffer:
    """Weights and gradients of some parameters in flat buffers, and this lane's part of masters and moments."""

    def __init__(
        self, sizes: list[int], *, lanes: int, lane: int, group: object, dtype: torch.dtype, bucket_elements: int | None
    ) -> None:
        self.lanes, self.lane, self.group = lanes, lane, group
        self.spans, self.buckets = lay_out(sizes, lanes, bucket_elements)
        self.data = torch.zeros(self.buckets[-1][1], dtype=dtype)
        self.grad = torch.zeros(self.buckets[-1][1])
        owned = self.buckets[-1][1] // lanes
        self.has_master = dtype != torch.float32  # fp32 weights are their own masters
        self.master = torch.zeros(owned if self.has_master else 0)
        self.exp_avg = torch.zeros(owned)
        self.exp_avg_sq = torch.zeros(owned)
        self.step = torch.zeros(())
        self.reduced = torch.zeros(owned)

    def lane_range(self, parameter: int, lane: int) -> tuple[int, int]:
        """Elements of the flat parameter that a lane owns; empty ranges are (0, 0)."""
        span = self.spans[parameter]
        begin, end = self._part(span.bucket, lane)
        begin, end = max(begin, span.begin), min(end, span.end)
        return (begin - span.begin, end - span.begin) if begin < end else (0, 0)

    def weight(self, parameter: int) -> torch.Tensor:
        """Flat, all of it."""
        return self.data[self.spans[parameter].begin : self.spans[parameter].end]

    def gradient(self, parameter: int) -> torch.Tensor:
        return self.grad[self.spans[parameter].begin : self.spans[parameter].end]

    def state(self, parameter: int, name: str) -> torch.Tensor:
        """This lane's part of `master`, `exp_avg` or `exp_avg_sq`, live."""
        return self.of_shard(getattr(self, name), parameter, self.lane)

    def of_shard(self, shard: torch.Tensor, parameter: int, lane: int) -> torch.Tensor:
        """A parameter's part of a lane's shard: of moments, masters, or `reduced`, the gradients of the last `update`."""
        begin, end = self.lane_range(parameter, lane)
        span = self.spans[parameter]
        at = 0
        if begin < end:  # a shard is the lane's parts of all buckets in a row
            at = self.buckets[span.bucket][0] // self.lanes + span.begin + begin - self._part(span.bucket, lane)[0]
        return shard[at : at + end - begin]

    def update(self) -> None:
        """Sums gradients over lanes, each lane its part and in the order of lanes; steps; gathers the weights."""
        parts = [self._take(self.grad, lane) for lane in range(self.lanes)]
        mine = torch.empty(self.lanes, len(self.exp_avg))
        dist.all_to_all_single(mine.view(-1), torch.cat(parts), group=self.group)
        self.reduced = mine[0].clone()
        for other in mine[1:]:
            self.reduced.add_(other)
        self.step += 1
        master = self.master if self.has_master else self._take(self.data, self.lane)
        adam(master, self.reduced, self.exp_avg, self.exp_avg_sq, int(self.step))
        self.gather_weights(master)
        self.grad.zero_()

    def gather_weights(self, master: torch.Tensor) -> None:
        """All weights from the lanes' masters."""
        part = master.to(self.data.dtype).view(torch.uint8)
        everything = [torch.empty_like(part) for _ in range(self.lanes)]
        dist.all_gather(everything, part, group=self.group)
        for lane, raw in enumerate(everything):
            values, at = raw.view(self.data.dtype), 0
            for bucket in range(len(self.buckets)):
                begin, end = self._part(bucket, lane)
                self.data[begin:end] = values[at : at + end - begin]
                at += end - begin

    def _part(self, bucket: int, lane: int) -> tuple[int, int]:
        begin, end = self.buckets[bucket]
        size = (end - begin) // self.lanes
        return begin + lane * size, begin + (lane + 1) * size

    def _take(self, flat: torch.Tensor, lane: int) -> torch.Tensor:
        parts = [self._part(bucket, lane) for bucket in range(len(self.buckets))]
        return torch.cat([flat[begin:end] for begin, end in parts])
