# SPDX-License-Identifier: Apache-2.0
"""Columns of experts become columns of slots, on dispatchers that only look like Megatron's."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from routepack import InvalidInput, Placement  # noqa: E402
from routepack.transfer import PhysicalDispatch, to_physical  # noqa: E402

SLOTS = [2, 0, 3, 1]  # the expert in each slot


class Dispatcher:
    """Keeps what it was handed."""

    def dispatch_preprocess(self, hidden_states, routing_map, probs):
        self.seen = hidden_states, routing_map, probs
        return hidden_states, probs


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(3, 4, bias=False)
        self.token_dispatcher = Dispatcher()


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    probs = torch.tensor([[0.0, 0.75, 0.25, 0.0], [0.5, 0.0, 0.0, 0.5]])
    return probs > 0, probs


def test_column_v_is_that_of_the_expert_in_slot_v():
    routing_map, probs = tokens()
    physical_map, physical = to_physical(routing_map, probs, torch.tensor(SLOTS))
    assert physical.tolist() == [[0.25, 0.0, 0.0, 0.75], [0.0, 0.5, 0.5, 0.0]]
    assert torch.equal(physical_map, physical > 0) and physical_map.dtype == torch.bool
    for v, e in enumerate(SLOTS):
        assert torch.equal(physical[:, v], probs[:, e])


@pytest.mark.parametrize("slots", [SLOTS, [0, 1, 2, 3]])
def test_what_comes_out_is_new_even_for_the_identity(slots):
    routing_map, probs = tokens()
    physical_map, physical = to_physical(routing_map, probs, torch.tensor(slots))
    physical_map.fill_(True)
    physical.fill_(9.0)
    assert torch.equal(routing_map, tokens()[0]) and torch.equal(probs, tokens()[1])


def test_gradients_reach_logical_columns():
    routing_map, probs = tokens()
    probs.requires_grad_()
    _, physical = to_physical(routing_map, probs, torch.tensor(SLOTS))
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])  # by slot
    (physical * weights).sum().backward()
    assert probs.grad.tolist() == [[2.0, 4.0, 1.0, 3.0], [20.0, 40.0, 10.0, 30.0]]


@pytest.mark.parametrize(
    "routing_map, probs, slots, message",
    [
        (torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 4), torch.arange(4), r"routing_map: found shape \[2, 3\]"),
        (torch.zeros(2, 4, dtype=torch.bool), torch.zeros(8), torch.arange(4), r"probs: found shape \[8\]"),
        (torch.zeros(2, 4, dtype=torch.bool), torch.zeros(2, 4), torch.arange(4.0), "slot_to_logical: found torch.float32"),
        (torch.zeros(2, 4, dtype=torch.bool), torch.zeros(2, 4), torch.zeros(2, 2).long(), "slot_to_logical: found"),
        (torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, 2), torch.arange(4), r"wanted \[tokens, 4\]"),
    ],
)
def test_other_shapes_are_refused(routing_map, probs, slots, message):
    with pytest.raises(InvalidInput, match=message):
        to_physical(routing_map, probs, slots)


def test_the_wrapped_dispatcher_sees_slots_and_the_caller_experts():
    dispatcher = Dispatcher()
    physical = PhysicalDispatch(dispatcher, 4)
    routing_map, probs = tokens()
    hidden = torch.ones(2, 3)
    dispatcher.dispatch_preprocess(hidden, routing_map, probs)
    assert torch.equal(dispatcher.seen[2], probs), "begins with the identity"
    placement = Placement.identity(layers=1, experts=4, ranks=2)
    for row in (SLOTS, placement.physical_to_logical[0], torch.tensor(SLOTS, dtype=torch.int32)):
        physical.update(row)
        dispatcher.dispatch_preprocess(hidden, probs=probs, routing_map=routing_map)
        assert dispatcher.seen[0] is hidden
        assert torch.equal(dispatcher.seen[2], probs[:, torch.as_tensor(row).long()])
        assert torch.equal(dispatcher.seen[1], dispatcher.seen[2] > 0)


def test_the_map_stays_at_its_address():
    physical = PhysicalDispatch(Dispatcher(), 4)
    live = physical.slot_to_logical
    address = live.data_ptr()
    physical.update(SLOTS)
    assert physical.slot_to_logical is live and live.data_ptr() == address
    assert live.dtype == torch.int64 and live.tolist() == SLOTS


@pytest.mark.parametrize("row", [[0, 1, 2], [0, 1, 2, 2], [1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0], [[0, 1, 2, 3]], [-1, 0, 1, 2]])
def test_no_permutation_no_update(row):
    physical = PhysicalDispatch(Dispatcher(), 4)
    physical.update(SLOTS)
    with pytest.raises(InvalidInput, match="placement: found"):
        physical.update(row)
    assert physical.slot_to_logical.tolist() == SLOTS


def test_the_map_is_a_buffer_of_its_module_outside_state_dicts():
    layer = Layer()
    physical = PhysicalDispatch(layer.token_dispatcher, 4, module=layer)
    assert list(layer.state_dict()) == ["router.weight"]
    assert [name for name, _ in layer.named_buffers()] == ["routepack_slot_to_logical"]
    layer.to("meta")
    assert physical.slot_to_logical.device.type == "meta", "follows its module"
    with pytest.raises(InvalidInput, match="Layer: found a buffer routepack_slot_to_logical"):
        PhysicalDispatch(Dispatcher(), 4, module=layer)
    physical.remove()
    assert not list(layer.named_buffers())


def test_removing_gives_the_own_method_back_and_may_be_repeated():
    dispatcher = Dispatcher()
    physical = PhysicalDispatch(dispatcher, 4)
    physical.update(SLOTS)
    physical.remove()
    physical.remove()
    assert not physical.installed and vars(dispatcher) == {}
    assert dispatcher.dispatch_preprocess.__func__ is Dispatcher.dispatch_preprocess
    physical.install()
    physical.install()
    routing_map, probs = tokens()
    dispatcher.dispatch_preprocess(None, routing_map, probs)
    assert torch.equal(dispatcher.seen[2], probs[:, SLOTS]), "once, under the map of before"


def test_an_instance_method_of_somebody_else_is_kept():
    dispatcher = Dispatcher()
    calls = []

    def theirs(hidden_states, routing_map, probs):
        calls.append(probs)

    dispatcher.dispatch_preprocess = lambda hidden_states, routing_map, probs: theirs(hidden_states, routing_map, probs)
    with pytest.raises(InvalidInput, match="found dispatch_preprocess"):
        # A function of the instance has no self: routing_map is its second parameter all the same.
        PhysicalDispatch(type("Other", (), {"dispatch_preprocess": lambda self, tokens, weights: None})(), 4)
    own = dispatcher.dispatch_preprocess
    physical = PhysicalDispatch(dispatcher, 4)
    physical.update(SLOTS)
    routing_map, probs = tokens()
    dispatcher.dispatch_preprocess(None, routing_map, probs)
    assert torch.equal(calls[0], probs[:, SLOTS])
    physical.remove()
    assert dispatcher.dispatch_preprocess is own


def test_a_dispatcher_is_wrapped_once():
    dispatcher = Dispatcher()
    physical = PhysicalDispatch(dispatcher, 4)
    with pytest.raises(InvalidInput, match="Dispatcher: found dispatch_preprocess wrapped already"):
        PhysicalDispatch(dispatcher, 4)
    inner = dispatcher.dispatch_preprocess
    dispatcher.dispatch_preprocess = lambda hidden_states, routing_map, probs: inner(hidden_states, routing_map, probs)
    with pytest.raises(InvalidInput, match="wrapped already"):
        PhysicalDispatch(dispatcher, 4)
    with pytest.raises(InvalidInput, match="wrapped again by another"):
        physical.remove()
    dispatcher.dispatch_preprocess = inner
    physical.remove()
    PhysicalDispatch(dispatcher, 4)


class WithSlots:
    __slots__ = ()

    def dispatch_preprocess(self, hidden_states, routing_map, probs):
        return None


@pytest.mark.parametrize(
    "dispatcher, message",
    [
        (object(), r"object: found no method dispatch_preprocess, wanted dispatch_preprocess\(hidden_states, routing_map"),
        (type("Inference", (), {"dispatch_preprocess": lambda self, tokens, ids: 0})(), r"found dispatch_preprocess\(tokens, ids\)"),
        (type("Value", (), {"dispatch_preprocess": 3})(), "found no method"),
        (WithSlots(), "without attributes of its own"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_and_named(dispatcher, message):
    with pytest.raises(InvalidInput, match=message):
        PhysicalDispatch(dispatcher, 4)


def test_a_copied_layer_has_a_map_of_its_own():
    layer = Layer()
    physical = PhysicalDispatch(layer.token_dispatcher, 4, module=layer)
    physical.update(SLOTS)
    other = copy.deepcopy(layer)
    physical.update([0, 1, 2, 3])
    routing_map, probs = tokens()
    other.token_dispatcher.dispatch_preprocess(None, routing_map, probs)
    assert torch.equal(other.token_dispatcher.seen[2], probs[:, SLOTS])
    assert not hasattr(layer.token_dispatcher, "seen"), "the copy calls its own dispatcher"
    restored = pickle.loads(pickle.dumps(other))
    restored.token_dispatcher.dispatch_preprocess(None, routing_map, probs)
    assert torch.equal(restored.token_dispatcher.seen[2], probs[:, SLOTS])


def test_recomputation_sees_the_same_columns():
    from torch.utils.checkpoint import checkpoint

    dispatcher = Dispatcher()
    PhysicalDispatch(dispatcher, 4).update(SLOTS)
    routing_map, probs = tokens()
    seen = []

    def run(given):
        _, physical = dispatcher.dispatch_preprocess(None, routing_map, given)
        seen.append(physical.detach().clone())
        return (physical * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()

    probs.requires_grad_()
    checkpoint(run, probs, use_reentrant=False).backward()
    assert len(seen) == 2 and torch.equal(seen[0], seen[1])
    assert probs.grad[0].tolist() == [2.0, 4.0, 1.0, 3.0]
