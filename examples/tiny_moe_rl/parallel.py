# SPDX-License-Identifier: Apache-2.0
"""Processes, their groups, and how tokens get to the ranks that hold their experts."""

from __future__ import annotations

import dataclasses
import datetime
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = datetime.timedelta(minutes=5)


@dataclasses.dataclass(frozen=True)
class Grid:
    """EP × EDP ranks, rank = lane · EP + EP rank, as Megatron orders them. The ranks of a lane hold different experts;
    lanes hold the same and share the optimizer's state. Every rank is a data-parallel slot."""

    ep: int
    edp: int
    rank: int
    store: Any  # the TCPStore, also for the small notes of the data plane
    ep_group: Any
    edp_group: Any

    @property
    def ranks(self) -> int:
        return self.ep * self.edp

    @property
    def ep_rank(self) -> int:
        return self.rank % self.ep

    @property
    def lane(self) -> int:
        return self.rank // self.ep


def join(rank: int, host: str, port: int, ep: int, edp: int) -> Grid:
    """Meets the other ranks. All groups are made by all ranks, in one order."""
    store = dist.TCPStore(host, port, is_master=False, timeout=PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ep * edp, timeout=PATIENCE)
    lanes = [dist.new_group(list(range(lane * ep, (lane + 1) * ep))) for lane in range(edp)]
    columns = [dist.new_group(list(range(p, ep * edp, ep))) for p in range(ep)]
    return Grid(ep, edp, rank, store, lanes[rank // ep], columns[rank % ep])


def launch(run: Callable[..., None], ep: int, edp: int, *args: Any) -> int:
    """Runs `run(grid, *args)` on every rank and returns the exit status. Under torchrun this process is one of them;
    otherwise all are started here, and none outlives this process."""
    if "RANK" in os.environ:
        if int(os.environ["WORLD_SIZE"]) != ep * edp:
            raise SystemExit(f"found {os.environ['WORLD_SIZE']} processes, wanted EP {ep} × EDP {edp} of them")
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        _be_rank(int(os.environ["RANK"]), host, port, ep, edp, run, args)
        return 0
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "routepack.transfer.torch_mover"])
    arguments = ("127.0.0.1", store.port, ep, edp, run, args)
    processes = [context.Process(target=_be_rank, args=(rank, *arguments), daemon=True) for rank in range(ep * edp)]
    for process in processes:
        process.start()
    try:
        running = list(processes)
        while running:
            ready = multiprocessing.connection.wait([process.sentinel for process in running])
            for ended in [process for process in running if process.sentinel in ready]:
                running.remove(ended)
                ended.join()
                if ended.exitcode != 0:
                    print(f"rank {processes.index(ended)} ended with status {ended.exitcode}", file=sys.stderr)
                    return 1
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        for process in processes:
            process.kill()


def _be_rank(rank: int, host: str, port: int, ep: int, edp: int, run: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    grid = join(rank, host, port, ep, edp)
    run(grid, *args)
    dist.barrier()  # nobody tears a connection down that another still uses
    dist.destroy_process_group()


def _end_with(parent: Any) -> None:
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, send: list[int], receive: list[int], group: Any) -> torch.Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchange(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchange(grads[0], ctx.receive, ctx.send, ctx.group), None, None, None


def _exchange(rows: torch.Tensor, send: list[int], receive: list[int], group: Any) -> torch.Tensor:
    out = torch.empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(out, rows.contiguous(), receive, send, group=group)
    return out


class SlotDispatcher:
    """Brings every token to the slots of its experts, and the results back.

    Its columns are slots: slot s of rank r is column r · slots + s. It knows no experts, as the dispatchers of
    Megatron, whose stages it has; `routepack.transfer.PhysicalDispatch` puts the router's columns into the order of
    slots.

    :param group: of the ranks; None: all slots are here
    """

    def __init__(self, ranks: int, slots: int, group: Any = None) -> None:
        self.ranks, self.slots, self.group = ranks, slots, group
        self.received = 0  # routed tokens of this rank in the last forward pass

    def dispatch_preprocess(
        self, hidden_states: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows by slot, then by token, and the probability of each."""
        self.tokens = hidden_states.shape[0]
        self.token = routing_map.t().nonzero()[:, 1]
        self.counts = routing_map.sum(0).view(self.ranks, self.slots)
        return hidden_states.index_select(0, self.token), probs.t().masked_select(routing_map.t())

    def token_dispatch(self, rows: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Rows of this rank's slots, by slot, then by the rank that they come from, and how many each slot has."""
        if self.group is None:
            return rows, self.counts[0].tolist()
        arriving = torch.empty_like(self.counts)
        dist.all_to_all_single(arriving, self.counts, group=self.group)
        self.send, self.receive = self.counts.sum(1).tolist(), arriving.sum(1).tolist()
        rows = _AllToAll.apply(rows, self.send, self.receive, self.group)
        self.received = rows.shape[0]
        slot_of_row = torch.arange(self.slots).repeat(self.ranks).repeat_interleave(arriving.view(-1))
        order = slot_of_row.sort(stable=True).indices
        self.back = order.sort().indices
        return rows.index_select(0, order), arriving.sum(0).tolist()

    def combine(self, rows: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        """Back to where the tokens came from, weighted and summed."""
        if self.group is not None:
            rows = _AllToAll.apply(rows.index_select(0, self.back), self.receive, self.send, self.group)
        return torch.zeros(self.tokens, rows.shape[1]).index_add(0, self.token, rows * probs[:, None])
