# SPDX-License-Identifier: Apache-2.0
"""Functions run by several processes that form a gloo world on this machine, and never outlive the caller."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


class RankFailed(AssertionError):
    """A rank raised, or died, or was not done in time; the others were ended."""

    def __init__(self, rank: int, kind: str, text: str) -> None:
        super().__init__(f"rank {rank}: {kind}: {text}")
        self.rank = rank
        self.kind = kind


# Imported once, by the process that all ranks are forked from; what is not installed is left out.
_PRELOADED = [
    "torch",
    "torch.distributed",
    "routepack.transfer.torch_mover",
    "megatron.core.distributed",
    "megatron.core.models.gpt.moe_module_specs",
    "megatron.core.optimizer",
    "megatron.core.transformer.moe.moe_layer",
]

# What gloo says on the peers of a rank that is gone.
_CONSEQUENCES = ("RuntimeError", "DistBackendError", "DistNetworkError", "Died")


def run_ranks(function: Callable[..., Any], ranks: int, *args: Any, timeout: float = 240.0) -> list[Any]:
    """Calls `function(rank, *args)` in `ranks` processes. @returns what each gave back

    The function is one of a module's own, and what goes in and out can be pickled.
    """
    with _Started(function, ranks, args, timeout) as world:
        return _collect(world.pipes, time.monotonic() + timeout)


def run_dying_ranks(function: Callable[..., Any], ranks: int, *args: Any, timeout: float = 60.0) -> list[int | None]:
    """The same for functions that end their processes themselves, one way or another. @returns the exit status of each,
    negative for a signal, none for one that had not ended in time
    @raises RankFailed when one raised"""
    with _Started(function, ranks, args, timeout) as world:
        deadline = time.monotonic() + timeout
        for process in world.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for rank, pipe in enumerate(world.pipes):
            with contextlib.suppress(EOFError):
                if pipe.poll() and (answer := pipe.recv())[0]:
                    raise RankFailed(rank, *answer)
        return [process.exitcode for process in world.processes]


class _Started:
    """Processes that are gone at the end, whatever happens. The store is here, so that it outlives any of them."""

    def __init__(self, function: Callable[..., Any], ranks: int, args: tuple[Any, ...], timeout: float) -> None:
        self._what = (function, ranks, args, timeout)
        self.processes: list[Any] = []
        self.pipes: list[Any] = []

    def __enter__(self) -> _Started:
        import torch.distributed

        function, ranks, args, timeout = self._what
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(ranks):
            mine, theirs = context.Pipe(duplex=False)
            arguments = (theirs, function, rank, ranks, self._store.port, timeout, args)
            process = context.Process(target=_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(mine)
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)
        for pipe in self.pipes:
            pipe.close()
        del self._store


def _collect(pipes: list[Any], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    failed: list[RankFailed] = []
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready: list[Any] = multiprocessing.connection.wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            if failed:
                break
            raise RankFailed(pipes.index(waiting[0]), "Timeout", "not done in time")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                kind, value = pipe.recv()
            except EOFError:
                kind, value = "Died", "without a word"
            results[rank] = value
            if kind:
                failed.append(RankFailed(rank, kind, value))
        if failed:  # peers of a failed rank fail for its sake: a moment for the one that knows why
            deadline = min(deadline, time.monotonic() + 1.0)
    if failed:
        raise next((f for f in failed if f.kind not in _CONSEQUENCES), failed[0])
    return [results[rank] for rank in range(len(pipes))]


def _main(pipe: Any, function: Any, rank: int, ranks: int, port: int, timeout: float, args: tuple[Any, ...]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: with the fork server, which ends with the caller
    import torch

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=timeout)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=patience)
    try:
        answer = ("", function(rank, *args))
    except BaseException as error:  # what happened is for the caller to judge
        text = str(error) if type(error).__name__ == "Mismatch" else traceback.format_exc()
        answer = (type(error).__name__, text)
    pipe.send(answer)
    pipe.close()
    if not answer[0]:
        torch.distributed.barrier()  # nobody tears a connection down that another still uses
        torch.distributed.destroy_process_group()
    else:
        os._exit(1)
