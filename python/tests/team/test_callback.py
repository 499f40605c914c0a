# SPDX-License-Identifier: Apache-2.0
"""Planning in a team over a carrier written in Python: the same plan everywhere, and an end for everybody."""

from __future__ import annotations

import _thread
import concurrent.futures
import pickle
import threading
import time

import pytest

import routepack
from routepack.team import Communicator, SelfTeam

from . import steps
from .thread_team import Hub, ThreadTeam, run_threads


@pytest.fixture(scope="module")
def alone():
    return steps.plan()


# The plan


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_team_makes_the_plan_of_one_process(alone, ranks, threads):
    params = routepack.PlanParams(effort="fast", threads=threads)
    for end in run_threads(ranks, lambda team: steps.plan(team=team, params=params)):
        assert end.get().hash == alone.hash and end.get().complete


def test_threads_may_differ_from_rank_to_rank(alone):
    made = run_threads(3, lambda team: steps.plan(team=team, params=routepack.PlanParams(effort="fast", threads=1 + team.rank)))
    assert {end.get().hash for end in made} == {alone.hash}


def test_a_team_of_one_is_a_team(alone):
    assert isinstance(SelfTeam(), Communicator)
    assert steps.plan(team=SelfTeam()).hash == alone.hash


def test_the_paper_s_search_and_several_windows_can_be_shared_too():
    windows = [steps.window(), steps.other_window()]
    params = routepack.PlanParams(effort="paper", threads=1, search=routepack.SearchParams(population=4, block_rows=0, levels=3))
    options = {"capacity": 2048, "cost": steps.cost(), "params": params}
    wanted = [plan.hash for plan in routepack.plan_many(windows, steps.TOPOLOGY, **options)]
    for end in run_threads(2, lambda team: routepack.plan_many(windows, steps.TOPOLOGY, team=team, **options)):
        assert [plan.hash for plan in end.get()] == wanted


def test_the_carrier_is_called_in_the_thread_that_called_plan(alone):
    team = None

    def plan(made):
        nonlocal team
        team = made
        steps.plan(team=made)
        return threading.get_ident()

    (end,) = run_threads(1, plan)
    assert team.threads == {end.get()}


def test_a_team_is_good_for_one_plan_after_another(alone):
    def twice(team):
        first = steps.plan(team=team)
        return first, steps.plan(team=team, current=first)

    for end in run_threads(2, twice):
        first, second = end.get()
        assert first.hash == alone.hash and second.moves["experts"] < first.moves["experts"]


# What ranks have in common


@pytest.mark.parametrize(
    ("mine", "named"),
    [
        ({"capacity": 4096}, "capacity 4096, wanted 2048"),
        ({"params": routepack.PlanParams(effort="fast", seed=3)}, "seed 3, wanted 0"),
        ({"params": routepack.PlanParams(effort="fast", deadline_ms=50)}, "deadline_ms 50, wanted 0"),
        ({"params": routepack.PlanParams(search=routepack.SearchParams(hot=0.2))}, "effort default, wanted fast"),
        ({"constraints": routepack.Constraints(min_rows=30)}, "min_rows 30, wanted 1"),
        ({"current": routepack.Placement.identity(layers=24, experts=32, ranks=8)}, "current xxh3"),
        ({"cost": routepack.CostModel([routepack.Stage("full", alpha=1.0)])}, "cost xxh3"),
        ({"topology": routepack.Topology(dp=16, ep=8)}, "topology of 16 slots"),
        ({"sync": "row"}, "sync row, wanted step"),
        ({"of": steps.other_window()}, "another window"),
    ],
)
def test_ranks_that_plan_different_things_end_at_once_and_say_in_what_they_differ(mine, named):
    ends = run_threads(3, lambda team: steps.plan(team=team, **(mine if team.rank == 2 else {})))
    for end in ends:
        assert isinstance(end.error, routepack.InvalidInput), end.error
        assert "rank 2: found" in str(end.error) and named in str(end.error)
    assert len({end.calls for end in ends}) == 1, "the team may be used again"


def test_ranks_with_more_windows_are_found_out():
    def plan(team):
        windows = [steps.window()] * team.rank
        return routepack.plan_many(windows, steps.TOPOLOGY, capacity=2048, cost=steps.cost(), team=team)

    for end in run_threads(2, plan):
        with pytest.raises(routepack.InvalidInput, match="rank 1: found windows 1, wanted 0"):
            end.get()


def test_no_layout_is_no_layout_for_all():
    for end in run_threads(2, lambda team: steps.plan(team=team, capacity=10)):
        assert isinstance(end.error, routepack.InfeasibleError)


# Deadlines, cuts, cancelling


def test_a_deadline_gives_all_the_same_valid_plan():
    params = routepack.PlanParams(search=steps.ENDLESS.search, threads=1, deadline_ms=300)
    plans = [end.get() for end in run_threads(3, lambda team: steps.plan(team=team, params=params))]
    assert {plan.hash for plan in plans} == {plans[0].hash}
    assert not plans[0].complete and plans[0].verify(steps.window()) == []


@pytest.mark.parametrize("how", ["control", "progress"])
def test_a_cut_in_one_rank_ends_the_search_of_all_with_one_plan(how):
    def plan(team):
        control = routepack.PlanControl()

        def progress(now):
            if team.rank == 1 and now.level == 2:
                if how == "progress":
                    return False
                control.cut()
            return None

        return steps.plan(team=team, params=steps.ENDLESS, control=control, progress=progress)

    plans = [end.get() for end in run_threads(3, plan)]
    assert {plan.hash for plan in plans} == {plans[0].hash}
    assert not plans[0].complete and plans[0].verify(steps.window()) == []


@pytest.mark.parametrize("when", ["before", "search", "check"])
def test_a_cancel_in_one_rank_ends_planning_for_all(when):
    def plan(team):
        control = routepack.PlanControl()
        if team.rank == 0 and when == "before":
            control.cancel()

        def progress(now):
            if team.rank == 0 and (now.phase == when and (now.level == 2 or when == "check")):
                control.cancel()

        params = steps.ENDLESS if when == "search" else steps.FAST
        return steps.plan(team=team, params=params, control=control, progress=progress)

    ends = run_threads(3, plan)
    for end in ends:
        with pytest.raises(routepack.Cancelled, match="cancelled"):
            end.get()
    assert len({end.calls for end in ends}) == 1


# What goes wrong in one rank


@pytest.mark.filterwarnings("ignore::routepack.RoutePackWarning")
@pytest.mark.parametrize("moment", ["demand", "place", "search", "check"])
def test_an_exception_in_one_rank_names_it_in_the_others(moment, alone):
    def plan(team):
        def progress(now):
            if team.rank == 1 and now.phase == moment:
                raise LookupError("no more")

        return steps.plan(team=team, progress=progress)

    began = time.monotonic()
    ends = run_threads(3, plan)
    assert time.monotonic() - began < 30, "nobody waits out the patience"
    assert isinstance(ends[1].error, LookupError)
    for rank in (0, 2):
        if moment == "check":  # they had the plan
            assert ends[rank].get().hash == alone.hash
        else:
            error = ends[rank].error
            assert isinstance(error, routepack.PeerLost) and error.rank == 1, error
            assert "LookupError: no more" in str(error)
    assert len({end.calls for end in ends}) == 1


def test_the_others_can_go_on_alone(alone):
    def plan(team):
        def progress(now):
            if team.rank == 1 and now.phase == "search" and now.level == 2:
                raise LookupError("no more")

        return steps.plan(team=team, progress=progress, on_lost="alone")

    with pytest.warns(routepack.RoutePackWarning, match="rank 1 is lost: it left the plan: LookupError: no more; this rank plans alone"):
        ends = run_threads(3, plan)
    assert isinstance(ends[1].error, LookupError), "its own fault is no reason to go on"
    assert ends[0].get().hash == ends[2].get().hash == alone.hash


def test_going_on_alone_ends_at_the_deadline():
    params = routepack.PlanParams(search=steps.ENDLESS.search, threads=1, deadline_ms=1500)

    def plan(team):
        def progress(now):
            if team.rank == 1 and now.phase == "search" and now.level == 1:
                raise LookupError("no more")

        return steps.plan(team=team, params=params, progress=progress, on_lost="alone")

    began = time.monotonic()
    with pytest.warns(routepack.RoutePackWarning, match="alone"):
        ends = run_threads(2, plan)
    assert time.monotonic() - began < 10
    assert not ends[0].get().complete and ends[0].get().verify(steps.window()) == []
    assert ends[0].get().params.deadline_ms == 1500


class Careless(ThreadTeam):
    """Whose rank 1 gets something strange, from its 5th call on where the ranks say different things."""

    made = 0

    def strange(self, all_of_them):
        raise NotImplementedError

    def all_gather(self, mine):
        answer = super().all_gather(mine)
        self.made += 1
        differ = len(set(answer)) == len(answer)
        return self.strange(answer) if self.rank == 1 and self.made >= 5 and differ else answer


@pytest.mark.parametrize(
    ("strange", "said"),
    [
        (lambda answer: answer[:-1], "found 2 items"),
        (lambda answer: [*answer, b""], "found 4 items"),
        (lambda answer: None, "found <class 'NoneType'>"),
        (lambda answer: b"".join(answer), "found <class 'bytes'>"),
        (lambda answer: [part.hex() for part in answer], "found <class 'str'> in place of rank 0"),
        (lambda answer: [answer[1], answer[0], answer[2]], "other bytes in place of rank 1"),
        (lambda answer: [b"hello", *answer[1:]], "no message of a plan from rank 0"),
        (lambda answer: [answer[0], answer[1], b""], "no message of a plan from rank 2"),
    ],
)
def test_a_carrier_that_brings_something_else_is_found_out(strange, said):
    team = type("Strange", (Careless,), {"strange": lambda self, answer: strange(answer)})
    ends = run_threads(3, lambda team: steps.plan(team=team), patience_s=0.5, make=team)
    assert isinstance(ends[1].error, routepack.InvalidInput) and said in str(ends[1].error), ends[1].error
    for rank in (0, 2):
        assert isinstance(ends[rank].error, routepack.PeerLost) and ends[rank].error.rank == 1


@pytest.mark.filterwarnings("ignore::routepack.RoutePackWarning")
def test_what_a_carrier_raises_comes_out(alone):
    class Broken(ThreadTeam):
        made = 0

        def all_gather(self, mine):
            self.made += 1
            if self.rank == 0 and self.made == 7:
                raise ArithmeticError("out of order")
            return super().all_gather(mine)

    ends = run_threads(2, lambda team: steps.plan(team=team, on_lost="alone"), patience_s=0.5, make=Broken)
    with pytest.raises(ArithmeticError, match="out of order"):
        ends[0].get()
    assert ends[1].get().hash == alone.hash


def test_a_message_of_another_plan_is_not_taken_for_one_of_this():
    """A rank that is one plan ahead, as after a step that only the others know of."""

    def plan(team):
        if team.rank == 1:
            team.all_gather(b"something else")
            return None
        return steps.plan(team=team)

    ends = run_threads(2, plan)
    assert isinstance(ends[0].error, routepack.InvalidInput) and "one plan at a time" in str(ends[0].error)


class Interrupted(ThreadTeam):
    """As when Ctrl-C comes in a wait, and out of one."""

    def all_gather(self, mine):
        if self.hub.calls[0] == 5:
            _thread.interrupt_main()
        return super().all_gather(mine)


def test_ctrl_c_comes_out_as_what_it_is():
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        steps.plan(team=Interrupted(Hub(1), 0), params=steps.ENDLESS, on_lost="alone")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("team", "kind", "said"),
    [
        (3, TypeError, "wanted a Communicator with an integer rank"),
        (type("T", (), {"rank": 0, "ranks": "2"})(), TypeError, "integer ranks"),
        (type("T", (), {"rank": 2, "ranks": 2})(), routepack.InvalidInput, "rank 2 of 2"),
        (type("T", (), {"rank": 0, "ranks": 2})(), AttributeError, "all_gather"),
    ],
)
def test_what_is_no_team_is_refused(team, kind, said):
    with pytest.raises(kind, match=said):
        steps.plan(team=team)


def test_what_to_do_about_a_loss_is_one_of_two_things():
    with pytest.raises(routepack.InvalidInput, match="on_lost: found \"ignore\""):
        steps.plan(team=SelfTeam(), on_lost="ignore")


def test_a_loss_can_be_pickled_and_is_an_error_of_ours():
    lost = pickle.loads(pickle.dumps(routepack.PeerLost(3, "it was silent")))
    assert lost.rank == 3 and str(lost) == "rank 3 is lost: it was silent"
    assert isinstance(lost, routepack.Error) and isinstance(lost, ConnectionError)


# Planners


def planner(team, **options):
    return routepack.Planner(steps.TOPOLOGY, capacity=2048, cost=steps.cost(), params=steps.FAST, team=team, **options)


def test_planners_of_a_team_plan_step_after_step(alone):
    def two_steps(team):
        with planner(team) as mine:
            futures = [mine.submit(steps.window()), mine.submit(steps.other_window())]
            placement = futures[0].placement
            assert placement.layers == 24
            return [future.result().hash for future in futures], mine.current

    first, second = (end.get() for end in run_threads(2, two_steps))
    assert first == second and first[0][0] == alone.hash


def test_a_timeout_in_one_rank_cuts_the_step_for_all():
    def one(team):
        with planner(team) as mine:
            future = mine.submit(steps.window(), params=steps.ENDLESS)
            return future.result(timeout=0.3 if team.rank == 0 else None)

    plans = [end.get() for end in run_threads(2, one)]
    assert plans[0].hash == plans[1].hash and not plans[0].complete


def test_a_step_that_one_rank_cancels_while_it_waits_is_cancelled_for_all_and_the_next_is_planned(alone):
    def three(team):
        with planner(team) as mine:
            running = mine.submit(steps.window(), params=steps.ENDLESS)
            unwanted, wanted = mine.submit(steps.window()), mine.submit(steps.window())
            running.placement
            if team.rank == 1:
                assert unwanted.cancel()
                running.cut()
            running.result()
            try:
                unwanted.result()
            except (routepack.Cancelled, concurrent.futures.CancelledError) as error:
                kind = type(error)
            return kind, wanted.result().hash

    ends = [end.get() for end in run_threads(2, three)]
    assert ends[0][0] is routepack.Cancelled and ends[1][0] is not routepack.Cancelled
    assert ends[0][1] == ends[1][1]


def test_a_planner_whose_team_is_lost_goes_on_alone():
    def steps_of(team):
        with planner(team, on_lost="alone") as mine:
            hashes = []
            for number in range(2):
                if team.rank == 1 and number == 1:
                    return hashes
                hashes.append(mine.submit(steps.window()).result().hash)
            return hashes

    with pytest.warns(routepack.RoutePackWarning, match="rank 1 is lost"):
        ends = run_threads(2, steps_of, patience_s=1.0)
    alone = planner(None)
    wanted = [alone.submit(steps.window()).result().hash for _ in range(2)]
    assert ends[0].get() == wanted and ends[1].get() == wanted[:1]


def test_what_travels_is_some_kilobytes_a_round():
    first, second = run_threads(2, lambda team: steps.plan(team=team))
    assert 10 < first.calls == second.calls < 2000
    assert 1_000 < min(first.sent, second.sent) and max(first.sent, second.sent) < 100_000_000
