# SPDX-License-Identifier: Apache-2.0
"""A team over MPI, with mpi4py."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from mpi4py import MPI

from routepack._errors import Error
from routepack.team.pairwise import Missed, Note, PairwiseTeam

# Of the messages of a plan and of the notes of those that give up, among those of the communicator.
_TAG, _NOTE_TAG = 0x5250, 0x5251
# A rank that waits looks for its messages without a pause for so long, then with pauses up to so long.
_SPIN_S, _LONGEST_PAUSE_S = 0.0002, 0.001
_LOOK_S = 0.02

# Memory of messages that did not end: MPI may touch it as long as the process lives.
_KEPT: list[Any] = []


class Mpi4pyTeam(PairwiseTeam):
    """The ranks of an MPI communicator plan together.

    Nonblocking messages from each rank to each, polled against the patience; while a rank waits it sleeps up to a
    millisecond between two looks. A communicator of its own is best (`comm.Dup()`); on a shared one nobody else uses
    the tags 0x5250 and 0x5251, nor receives with ANY_TAG. A `Planner` calls MPI in a thread of its own: that takes
    THREAD_MULTIPLE, which mpi4py asks for, or SERIALIZED and nobody else in MPI meanwhile.

    A lost rank can end the job before it is named: MPI's launchers end a job whose process died, unless told otherwise
    (`mpirun --enable-recovery --mca orte_abort_on_non_zero_status 0`, `mpiexec.hydra -disable-auto-cleanup`). And
    MPI_Finalize, which mpi4py calls at exit, may wait for who is lost: `os._exit` after the last file was written.
    """

    def __init__(self, comm: Any = None, *, patience_s: float = 60.0) -> None:
        """
        :param comm: an intracommunicator; None: COMM_WORLD
        :param patience_s: longer than the longest work of any rank between two messages: coming to `plan` later than
            the others, counting rows, one round of the search
        """
        self._comm: Any = MPI.COMM_WORLD if comm is None else comm
        super().__init__(self._comm.Get_rank(), self._comm.Get_size(), patience_s)

    def all_gather(self, mine: bytes) -> list[bytes]:
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED and not MPI.Is_thread_main():
            raise Error("MPI allows no calls from other threads than the main one: plan there, without a Planner")
        return super().all_gather(mine)

    all_gather.__doc__ = PairwiseTeam.all_gather.__doc__

    def _exchange(self, out: bytes, sizes: list[int]) -> list[bytes]:
        inboxes = [bytearray(size) for size in sizes]
        pending: list[tuple[int, bool, Any]] = []
        failures: dict[int, str] = {}
        kept = [out, inboxes]
        until = time.monotonic() + self._patience_s
        for peer in range(self._ranks):
            if peer == self._rank:
                continue
            try:
                if sizes[peer] > 0:
                    pending.append((peer, True, self._comm.Irecv([inboxes[peer], MPI.BYTE], peer, _TAG)))
                if out:
                    pending.append((peer, False, self._comm.Isend([out, MPI.BYTE], peer, _TAG)))
            except MPI.Exception as error:
                failures[peer] = _what(error)
        try:
            self._wait(pending, failures, until)
        except BaseException:
            _KEPT.append((pending, kept))
            raise
        return [bytes(inbox) for inbox in inboxes]

    def _wait(self, pending: list[tuple[int, bool, Any]], failures: dict[int, str], until: float) -> None:
        """Takes what is done from `pending`."""
        begun = look = time.monotonic()
        pause = 0.0
        while not failures:
            for one in list(pending):
                peer, _, request = one
                try:
                    if not request.Test():
                        continue
                except MPI.Exception as error:
                    failures[peer] = _what(error)
                pending.remove(one)
            if not pending:
                break
            now = time.monotonic()
            if now >= until:
                # Who has not said anything is to be named, not who takes no message.
                silent = {peer for peer, receives, _ in pending if receives} or {peer for peer, _, _ in pending}
                raise Missed({peer: f"was silent for {self._patience_s:g} s" for peer in silent})
            if now >= look + _LOOK_S:
                look = now
                peers = {peer for peer, _, _ in pending}
                if left := {peer for peer in peers if self._has_note(peer)}:
                    raise Missed({peer: "left" for peer in left})
            if now >= begun + _SPIN_S:
                pause = min(2 * pause + 0.00002, _LONGEST_PAUSE_S)
            time.sleep(pause)
        if failures:
            raise Missed(failures)

    def _has_note(self, peer: int) -> bool:
        try:
            return bool(self._comm.Iprobe(peer, _NOTE_TAG))
        except MPI.Exception:
            return False

    def _swap_notes(self, mine: Note, missed: Mapping[int, str]) -> dict[int, Note]:
        text = mine.to_bytes()
        for peer in range(self._ranks):
            if peer != self._rank:
                with contextlib.suppress(MPI.Exception):
                    _KEPT.append((text, self._comm.Isend([text, MPI.BYTE], peer, _NOTE_TAG)))
        notes: dict[int, Note] = {}
        for peer in missed:
            with contextlib.suppress(MPI.Exception):
                status = MPI.Status()
                if self._comm.Iprobe(peer, _NOTE_TAG, status):
                    inbox = bytearray(status.Get_count(MPI.BYTE))
                    self._comm.Recv([inbox, MPI.BYTE], peer, _NOTE_TAG)  # it is here
                    notes[peer] = Note.from_bytes(bytes(inbox))
        return notes


def _what(error: MPI.Exception) -> str:
    return f"cannot be reached ({error.Get_error_string()})"


__all__ = ["Mpi4pyTeam"]
