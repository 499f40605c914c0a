# SPDX-License-Identifier: Apache-2.0
"""Expert state in torch tensors, moved by torch.distributed: gloo for host memory, NCCL by the same calls.

The engine (C++, `routepack.transfer.TransferEngine`) decides what goes where and when; this module looks at tensors,
sends views of them with `batch_isend_irecv`, and writes staged bytes back in place.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy
import numpy.typing
import torch
import torch.distributed

from routepack._core import GridLayout, LayerSchedule, TrainerFacts, TransferFailure, piece_checksum
from routepack.transfer.postbox import PeerLost

_LOCAL, _SEND, _RECEIVE = 0, 1, 2


class RankState(Protocol):
    """What the trainer holds on this rank. Asked anew at every move, since frameworks offload and reload buffers."""

    def tensor(self, layer: int, local_slot: int, tensor: int) -> torch.Tensor:
        """The live, contiguous tensor (of a sharded one: this lane's part, flat) at the address where it is used."""

    def gradient(self, layer: int, local_slot: int, parameter: int) -> torch.Tensor | None:
        """The gradient as far as this rank holds one; must be all zero when a move begins."""

    def facts(self) -> TrainerFacts:
        """What might forbid a move."""


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as uint8 [bytes], without a copy.

    >>> bytes_of(torch.tensor([1, 256], dtype=torch.int16)).tolist()
    [1, 0, 0, 1]
    """
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous")
    return tensor.detach().reshape(-1).view(torch.uint8)


def device_checksum(data: torch.Tensor, seed: int) -> int:
    """A checksum of uint8 memory on its own device: 64-bit words times odd weights that depend on their places,
    summed modulo 2^64. Any single changed word changes it.

    >>> a = torch.arange(100, dtype=torch.uint8)
    >>> b = a.clone(); b[17] += 1
    >>> device_checksum(a, 1) == device_checksum(b, 1), device_checksum(a, 1) == device_checksum(a.clone(), 1)
    (False, True)
    """
    whole = data.numel() // 8 * 8
    total = seed
    step = 1 << 24  # words at a time: bounds the memory of the weights
    words = data[:whole].view(torch.int64) if data.data_ptr() % 8 == 0 else data[:whole].clone().view(torch.int64)
    for begin in range(0, words.numel(), step):
        part = words[begin : begin + step]
        weights = torch.arange(begin, begin + part.numel(), dtype=torch.int64, device=data.device)
        weights = weights * -7046029254386353131 | 1
        total += int((part * weights).sum().item())
    for place, byte in enumerate(data[whole:].tolist()):
        total += (byte + 1) * (2 * place + 3) << 32
    return total % (1 << 64)


class TorchMover:
    """Moves one rank's tensors for a `TransferEngine`.

    :param layout: the same on every rank
    :param state: where the live tensors are
    :param rank: this rank's number on the grid, lane·EP + ep rank
    :param global_ranks: of each rank of the grid, its rank in torch.distributed; None: the same numbers
    :param group: the process group that carries the bulk; None: the default group
    :param device: where staging lies; None: where the first tensor lies
    """

    def __init__(
        self,
        layout: GridLayout,
        state: RankState,
        rank: int,
        *,
        global_ranks: Sequence[int] | None = None,
        group: Any = None,
        device: torch.device | None = None,
    ) -> None:
        self._layout = layout
        self._tensors = layout.tensors
        self._parameters = layout.parameters
        self._state = state
        self._rank = rank
        self._lane = rank // layout.ep
        self._global = list(global_ranks) if global_ranks is not None else list(range(layout.ep * layout.edp))
        self._group = group
        self._device = device if device is not None else state.tensor(0, 0, 0).device
        slots = layout.layers * layout.slots
        self._canaries = torch.full((slots, 2), -1, dtype=torch.int64, device=self._device)
        self._live: dict[tuple[int, int, int], torch.Tensor] = {}
        self._addresses: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._gradients: list[tuple[tuple[int, int, int, int], torch.Tensor]] = []
        self._staging = torch.empty(0, dtype=torch.uint8, device=self._device)
        self._base: dict[int, int] = {}
        self._copies: dict[int, numpy.typing.NDArray[Any]] = {}
        self._source_sums: dict[tuple[int, int], int] = {}
        self._hop: _Hop | None = None
        self._equal_digest = 0

    def facts(self) -> TrainerFacts:
        return self._state.facts()

    def inspect(self, layers: Sequence[LayerSchedule]) -> TransferFailure | None:
        self._live.clear()
        self._addresses.clear()
        self._gradients.clear()
        equals: dict[int, bytes] = {}
        for schedule in layers:
            copies = schedule.copies
            slots = self._layout.slots
            touched = {(int(c["from_slot"]) % slots, int(c["expert"])) for c in copies[copies["from_live"]]}
            touched |= {(int(c["to_slot"]) % slots, int(c["expert"])) for c in copies[copies["to_final"]]}
            for slot, expert in sorted(touched):
                failure = self._inspect_slot(schedule.layer, slot, expert)
                if failure is not None:
                    return failure
            for index, tensor in enumerate(self._tensors):
                if tensor.spread != "equal":
                    continue
                for slot in range(self._layout.slots):
                    value = bytes_of(self._state.tensor(schedule.layer, slot, index)).cpu().numpy().tobytes()
                    if equals.setdefault(index, value) != value:
                        what = f"«{tensor.name}» differs between experts; it must be equal everywhere, it is not moved"
                        return self._defect(what, schedule.layer, slot, -1, index)
        failure = self._inspect_gradients()
        if failure is not None:
            return failure
        digest = hashlib.blake2b(repr(sorted(equals.items())).encode(), digest_size=8).digest()
        self._equal_digest = int.from_bytes(digest, "little")
        return None

    def _inspect_slot(self, layer: int, slot: int, expert: int) -> TransferFailure | None:
        for index, tensor in enumerate(self._tensors):
            if tensor.spread == "equal":
                continue
            wanted = self._layout.bytes_on(layer, slot, index, self._lane)
            try:
                live = self._resolve(layer, slot, index)
            except Exception as error:
                return self._defect(f"{type(error).__name__}: {error}", layer, slot, expert, index)
            if live.numel() != wanted:
                return self._defect(f"{live.numel()} bytes, the layout wants {wanted}", layer, slot, expert, index)
            if live.device != self._device:
                return self._defect(f"is on {live.device}, staging on {self._device}", layer, slot, expert, index)
            self._live[layer, slot, index] = live
            self._addresses[layer, slot, index] = (live.data_ptr(), live.numel())
        for index in range(len(self._layout.parameters)):
            gradient = self._state.gradient(layer, slot, index)
            if gradient is not None and gradient.numel():
                self._gradients.append(((layer, slot, expert, index), torch.count_nonzero(gradient)))
        return None

    def _inspect_gradients(self) -> TransferFailure | None:
        """All in one look: on a GPU each would wait for it."""
        if not self._gradients:
            return None
        counts = torch.stack([count.to(self._device) for _, count in self._gradients]).cpu()
        self._gradients, looked_at = [], self._gradients
        if not int(counts.sum()):
            return None
        layer, slot, expert, index = looked_at[int(torch.nonzero(counts)[0])][0]
        what = f"the gradient of «{self._parameters[index].name}» is not zero; move experts after the optimizer step"
        return self._defect(what, layer, slot, expert, -1)

    def _defect(self, what: str, layer: int, slot: int, expert: int, tensor: int) -> TransferFailure:
        name = f", tensor «{self._tensors[tensor].name}»" if tensor >= 0 else ""
        where = f"rank {self._rank}: layer {layer}, local slot {slot}{name}"
        return TransferFailure(f"{where}: {what}", rank=self._rank, layer=layer, expert=expert, tensor=tensor)

    def _resolve(self, layer: int, slot: int, tensor: int) -> torch.Tensor:
        if tensor == self._layout.canary:
            return bytes_of(self._canaries[layer * self._layout.slots + slot])
        return bytes_of(self._state.tensor(layer, slot, tensor))

    def equal_digest(self) -> int:
        return self._equal_digest

    def set_canary(self, layer: int, local_slot: int, expert: int) -> None:
        self._canaries[layer * self._layout.slots + local_slot] = torch.tensor([layer, expert])

    def canary(self, layer: int, local_slot: int) -> tuple[int, int]:
        held_layer, expert = self._canaries[layer * self._layout.slots + local_slot].tolist()
        return held_layer, expert

    def stage(self, layers: Sequence[LayerSchedule]) -> None:
        self._base.clear()
        self._copies.clear()
        self._source_sums.clear()
        size = 0
        for schedule in layers:
            self._base[schedule.layer] = size
            self._copies[schedule.layer] = schedule.copies
            size += schedule.staging_bytes  # a multiple of 64
        if size > self._staging.numel():
            self._staging = torch.empty(0, dtype=torch.uint8, device=self._device)  # never two of them at a time
            self._staging = torch.empty(size, dtype=torch.uint8, device=self._device)

    def start(self, layer: int, hop: int) -> None:
        operations: list[tuple[int, torch.distributed.P2POp]] = []
        for index, copy in enumerate(self._copies[layer]):
            if copy["hop"] != hop:
                continue
            kind, peer = int(copy["kind"]), int(copy["peer"])
            source = self._source(layer, copy) if kind != _RECEIVE else None
            if source is not None and copy["from_live"]:
                self._source_sums[layer, index] = self._checksum(copy, source)
            if kind == _LOCAL:
                self._staged(layer, copy).copy_(source)
            elif kind == _SEND:
                send = torch.distributed.P2POp(torch.distributed.isend, source, self._global[peer], self._group)
                operations.append((peer, send))
            else:
                into = self._staged(layer, copy)
                receive = torch.distributed.P2POp(torch.distributed.irecv, into, self._global[peer], self._group)
                operations.append((peer, receive))
        self._begin(operations)

    def _begin(self, operations: list[tuple[int, torch.distributed.P2POp]]) -> None:
        """The messages of a hop, (grid rank of the peer, operation) in the order that both sides keep."""
        self._hop = _Hop(operations, self._device)

    def advance(self) -> tuple[bool, bool]:
        """Whether the hop is over, and whether anything got on."""
        if self._hop is None:
            return True, False
        over = self._hop.over()
        if over:
            self._hop = None
        return over, over

    def waiting_for(self) -> int:
        return -1 if self._hop is None else self._hop.waiting_for()

    def _source(self, layer: int, copy: Any) -> torch.Tensor:
        if not copy["from_live"]:
            return self._staged(layer, copy)
        live = self._live[layer, int(copy["from_slot"]) % self._layout.slots, int(copy["tensor"])]
        begin = int(copy["source_offset"])
        return live[begin : begin + int(copy["bytes"])]

    def _staged(self, layer: int, copy: Any) -> torch.Tensor:
        begin = self._base[layer] + int(copy["staging_offset"])
        return self._staging[begin : begin + int(copy["bytes"])]

    def _checksum(self, copy: Any, data: torch.Tensor) -> int:
        which = {k: int(copy[k]) for k in ("layer", "expert", "tensor", "from_slot", "to_slot", "begin")}
        if data.device.type == "cpu":
            checksum: int = piece_checksum(bytes=data.numpy(), **which)
            return checksum
        seed = int.from_bytes(hashlib.blake2b(repr(which).encode(), digest_size=8).digest(), "little")
        return device_checksum(data, seed)

    def source_checksum(self, layer: int, copy: int) -> int:
        return self._source_sums[layer, copy]

    def staged_checksum(self, layer: int, copy: int) -> int:
        row = self._copies[layer][copy]
        return self._checksum(row, self._staged(layer, row))

    def staged_canary(self, layer: int, copy: int) -> tuple[int, int]:
        raw = self._staged(layer, self._copies[layer][copy]).cpu().numpy().tobytes()
        return int.from_bytes(raw[:8], "little", signed=True), int.from_bytes(raw[8:], "little", signed=True)

    def commit(self, layer: int, copy: int, read_back: bool) -> None:
        row = self._copies[layer][copy]
        slot, tensor = int(row["to_slot"]) % self._layout.slots, int(row["tensor"])
        live = self._resolve(layer, slot, tensor)
        if (live.data_ptr(), live.numel()) != self._addresses[layer, slot, tensor]:
            raise ValueError("the tensor is no longer where it was when the move began")
        begin = int(row["target_offset"])
        target = live[begin : begin + int(row["bytes"])]
        staged = self._staged(layer, row)
        target.copy_(staged)
        if read_back and not torch.equal(target, staged):
            raise ValueError("what was written reads back differently")

    def release(self) -> None:
        self._live.clear()
        self._copies.clear()


class _Hop:
    """The messages of one hop. gloo's work objects complete only in wait(), so a thread waits for them."""

    def __init__(self, operations: list[tuple[int, torch.distributed.P2POp]], device: torch.device) -> None:
        self._peers = [peer for peer, _ in operations]
        self._done = 0
        self._failure: tuple[int, str] | None = None
        self._works: list[Any] = []
        self._keep = operations
        self._polled = device.type != "cpu"
        if not operations:
            return
        try:
            self._works = torch.distributed.batch_isend_irecv([operation for _, operation in operations])
        except RuntimeError as error:  # a connection that is gone already; told where the hop is waited for
            self._failure = (self._peers[0], str(error).splitlines()[0])
            return
        if not self._polled:
            threading.Thread(target=self._wait, name="routepack-hop", daemon=True).start()

    def _wait(self) -> None:
        for index, work in enumerate(self._works):
            try:
                work.wait()
            except RuntimeError as error:
                self._failure = (self._peers[min(index, len(self._peers) - 1)], str(error).splitlines()[0])
                return
            self._done = index + 1

    def over(self) -> bool:
        if self._failure is not None:
            raise PeerLost(*self._failure)
        if self._works and self._polled:
            while self._done < len(self._works) and self._works[self._done].is_completed():
                self._done += 1
        return self._done == len(self._works)

    def waiting_for(self) -> int:
        return self._peers[min(self._done, len(self._peers) - 1)] if self._peers else -1


__all__ = ["RankState", "TorchMover", "bytes_of", "device_checksum"]
