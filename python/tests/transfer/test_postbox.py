# SPDX-License-Identifier: Apache-2.0
"""Notes through a store, and what an engine makes of a store that does not answer. Without torch."""

from __future__ import annotations

import pytest

import routepack
from routepack import Placement
from routepack.transfer import GridLayout, PeerLost, StorePostbox, TrainerFacts, TransferEngine


class Local:
    """A store with the words of torch.distributed's."""

    def __init__(self):
        self.values, self.down = {}, False

    def set(self, key, value):
        self._answer()
        self.values[key] = value

    def get(self, key):
        self._answer()
        return self.values[key]

    def add(self, key, amount):
        self._answer()
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def check(self, keys):
        self._answer()
        return all(key in self.values for key in keys)

    def delete_key(self, key):
        return self.values.pop(key, None) is not None

    def _answer(self):
        if self.down:
            raise RuntimeError("Connection was likely closed.")


def boxes(store, ranks=3, prefix="test"):
    return [StorePostbox(store, rank, ranks, prefix, poll_seconds=0) for rank in range(ranks)]


def test_notes_arrive_in_order_from_everybody_and_leave_nothing_but_bells():
    store = Local()
    a, b, c = boxes(store)
    for word in (b"one", b"two", b"three"):
        a.post(1, word)
    c.post(1, b"")
    b.post(1, b"to myself")
    found = [b.note() for _ in range(6)]
    assert [note[1] for note in found[:5] if note[0] == 0] == [b"one", b"two", b"three"]
    assert sorted(note for note in found if note and note[0] != 0) == [(1, b"to myself"), (2, b"")]
    assert found[5] is None and a.note() is None
    assert all(key.endswith("bell") for key in store.values)


def test_another_prefix_is_another_box():
    store = Local()
    boxes(store, prefix="one")[0].post(1, b"old")
    assert boxes(store, prefix="two")[1].note() is None


def test_polls_come_further_apart_while_nothing_comes():
    store = Local()
    box = StorePostbox(store, 0, 2, "test", poll_seconds=0.001)
    polls = 0
    add = store.add

    def count(key, amount):
        nonlocal polls
        polls += 1
        return add(key, amount)

    store.add = count
    asked = 0
    while polls < 8:
        assert box.note() is None
        asked += 1
    assert asked > polls, "most questions cost the store nothing"


def test_a_rank_that_is_none_is_refused():
    with pytest.raises(ValueError, match="rank: found 3, wanted 0 to 2"):
        StorePostbox(Local(), 3, 3, "test")


class Mover:
    """As much of one as a move asks for before its first message."""

    def __init__(self):
        self.held = {}

    def facts(self):
        return TrainerFacts()

    def inspect(self, layers):
        return None

    def equal_digest(self):
        return 0

    def set_canary(self, layer, slot, expert):
        self.held[layer, slot] = (layer, expert)

    def canary(self, layer, slot):
        return self.held[layer, slot]

    def release(self):
        pass


def engine(store, mover):
    layout = GridLayout.adam(ep=2, edp=1, layers=1, slots=2, hidden=4, width=4)
    now = Placement.identity(layers=1, experts=4, ranks=2)
    return TransferEngine(boxes(store, ranks=2)[0], layout, mover, now, 0, timeout_ms=200), now


def test_a_store_that_does_not_answer_ends_the_move_and_the_engine():
    store = Local()
    here, now = engine(store, Mover())
    store.down = True
    with pytest.raises(routepack.Error, match="the store does not answer: Connection was likely closed"):
        here.move(now, 1)
    store.down = False
    with pytest.raises(routepack.InvalidInput, match="spent"):
        here.move(now, 1)
    assert here.placement == now and here.epoch == 0 and here.layers == ["old"]


def test_a_rank_that_is_alone_says_so_in_time():
    here, now = engine(Local(), Mover())
    outcome = here.move(now, 1)
    assert not outcome.complete and outcome.layers == ["old"] and outcome.silent == [1]
    assert "rank 1 did not answer within 200 ms" in outcome.failure.what


def test_a_mover_that_answers_nonsense_is_an_error_of_its_rank():
    mover = Mover()
    mover.canary = lambda layer, slot: "none"
    here, now = engine(Local(), mover)
    with pytest.raises(routepack.Error, match="wrong type"):
        here.move(now, 1)


def test_peers_that_are_lost_have_a_number():
    assert str(PeerLost(3, "reset")) == "rank 3 is lost: reset"
