# SPDX-License-Identifier: Apache-2.0
"""What the adapter makes of optimizers and layers that need a GPU, as objects with the same attributes: Transformer
Engine's FusedAdam with masters of its own, its grouped experts with biases, legacy grouped experts, late gathers."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

from routepack import InvalidInput  # noqa: E402
from routepack.transfer import GridLayout  # noqa: E402
from routepack.transfer.megatron_state import MegatronState  # noqa: E402

H, F, SLOTS, EP, EDP = 16, 12, 2, 4, 2


class Layer(torch.nn.Module):
    def __init__(self, number, names, dtype=torch.bfloat16):
        super().__init__()
        self.layer_number = number
        self.router, self.experts = torch.nn.Linear(2, 2), torch.nn.Module()
        self.token_dispatcher = types.SimpleNamespace()
        for name, shape in names.items():
            *path, last = name.split(".")
            inner = self.experts
            for word in path:
                if not hasattr(inner, word):
                    inner.add_module(word, torch.nn.Module())
                inner = getattr(inner, word)
            inner.register_parameter(last, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))


class Chunk(torch.nn.Module):
    """DistributedDataParallel: one buffer of one bucket, laid out by Megatron's rules."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.ddp_config = types.SimpleNamespace(use_megatron_fsdp=False)
        self.expert_parallel_bucket_groups = [types.SimpleNamespace(param_gather_handle=None)]
        places, at = {}, 0
        for parameter in [p for layer in layers for p in layer.experts.parameters()][::-1]:
            at = -(-at // 64) * 64
            places[parameter] = (at, at + parameter.numel(), 0)
            at += parameter.numel()
        bucket = types.SimpleNamespace(offset=0, grad_data=torch.zeros(-(-at // 128) * 128))
        group = types.SimpleNamespace(size=lambda: EDP)
        buffer = types.SimpleNamespace(param_index_map=places, buckets=[bucket], data_parallel_group=group)
        self.expert_parallel_buffers = [buffer]


class FusedAdam:
    def __init__(self, groups):
        self.param_groups, self.state = groups, {}


class Precise:
    """A distributed optimizer whose inner one holds masters (use_precision_aware_optimizer)."""

    def __init__(self, chunk, lane, states):
        (buffer,) = chunk.expert_parallel_buffers
        size = buffer.buckets[0].grad_data.numel() // EDP
        self.model_param_group_index_map, shards = {}, []
        for parameter, (start, end, _) in buffer.param_index_map.items():
            begin, stop = max(start, lane * size), min(end, (lane + 1) * size)
            if begin < stop:
                self.model_param_group_index_map[parameter] = (0, len(shards))
                shards.append(parameter.detach().view(-1)[begin - start : stop - start])
        self.optimizer = FusedAdam([{"params": shards, "lr": 1e-3, "weight_decay": 0.1, "step": 3}])
        for shard in shards:
            self.optimizer.state[shard] = {name: torch.zeros(shard.numel(), dtype=d) for name, d in states.items()}


GROUPED = {f"linear_fc{i}.weight{slot}": [[2 * F, H], [H, F]][i - 1] for i in (1, 2) for slot in range(SLOTS)}
ADAM = {"master_param": torch.float32, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}


def states_of(chunk_of, states=ADAM):
    made = []
    for lane in range(EDP):
        chunk = chunk_of()
        made.append(MegatronState([chunk], Precise(chunk, lane, states), lane))
    return made


def layout_of(states):
    return states[0].layout(EP, EDP, [state.describe() for state in states for _ in range(EP)])


def test_grouped_experts_under_a_precision_aware_optimizer_lie_as_the_worked_example_says():
    states = states_of(lambda: Chunk(Layer(5, GROUPED)))
    found = layout_of(states)
    wanted = GridLayout.adam(ep=EP, edp=EDP, layers=1, slots=SLOTS, hidden=H, width=F)
    assert [found.lanes_of(0, s, p) for s in range(2) for p in range(2)] == [
        wanted.lanes_of(0, s, p) for s in range(2) for p in range(2)
    ]
    roles = {(t.name, t.role, t.type, t.spread) for t in found.tensors}
    assert ("linear_fc1.weight.master", "master", "F32", "sharded") in roles
    assert ("linear_fc2.weight.exp_avg_sq", "moment", "F32", "sharded") in roles
    assert len(roles) == 9, "two weights, two masters, four moments, the canary: the step is in the group"
    for state in states:
        state.layout(EP, EDP, [other.describe() for other in states])
        for slot in range(SLOTS):
            for index in range(8):
                live = state.tensor(0, slot, index)
                assert live.numel() * live.element_size() == found.bytes_on(0, slot, index, state.lane)


def test_low_halves_of_masters_are_remainders_and_16_bit_moments_move_as_they_are():
    kinds = {"master_param": torch.int16, "exp_avg": torch.bfloat16, "exp_avg_sq": torch.float32}
    found = layout_of(states_of(lambda: Chunk(Layer(1, GROUPED)), kinds))
    roles = {t.name: (t.role, t.type) for t in found.tensors}
    assert roles["linear_fc1.weight.master"] == ("remainder", "I16")
    assert roles["linear_fc1.weight.exp_avg"] == ("moment", "BF16")


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_moments_with_a_scale_per_shard_are_refused(dtype):
    with pytest.raises(InvalidInput, match="exp_avg"):
        layout_of(states_of(lambda: Chunk(Layer(1, GROUPED)), ADAM | {"exp_avg": dtype}))


def test_biases_move_and_layers_count_as_megatron_counts_them():
    biases = {f"linear_fc{i}.bias{slot}": [[2 * F], [H]][i - 1] for i in (1, 2) for slot in range(SLOTS)}
    states = states_of(lambda: Chunk(Layer(7, GROUPED | biases), Layer(3, GROUPED | biases)))
    found = layout_of(states)
    assert [layer.number for layer in states[0].layers] == [3, 7]
    assert {t.name: t.role for t in found.tensors}["linear_fc1.bias"] == "bias"
    assert found.layers == 2 and len(found.parameters) == 4


@pytest.mark.parametrize("names", [{"weight1": [H, 2 * F]}, {"linear_fc1.weight": [SLOTS, 2 * F, H]}])
def test_experts_stacked_in_one_parameter_are_refused(names):
    with pytest.raises(InvalidInput, match="layer 2: found expert parameter .* wanted one tensor per expert"):
        states_of(lambda: Chunk(Layer(2, names)))


def test_experts_of_different_shapes_are_refused():
    with pytest.raises(InvalidInput, match="layer 1, slot 1: found"):
        states_of(lambda: Chunk(Layer(1, GROUPED | {"linear_fc1.weight1": [F, H]})))


def test_layers_with_the_same_number_are_refused():
    with pytest.raises(InvalidInput, match=r"found layers \[4, 4\]"):
        states_of(lambda: Chunk(Layer(4, GROUPED), Layer(4, GROUPED)))


def test_layers_of_multi_token_prediction_stay_at_home():
    def chunk():
        made = Chunk(*(Layer(number, GROUPED) for number in (3, 4, 5, 6)))
        made.mtp = torch.nn.Module()
        made.mtp.layers = torch.nn.ModuleList([made.layers.pop(3)])
        return made

    states = states_of(chunk)
    assert [layer.number for layer in states[0].layers] == [3, 4, 5] and layout_of(states).layers == 3


def test_a_model_without_experts_is_refused():
    with pytest.raises(InvalidInput, match="MoELayer"):
        states_of(lambda: Chunk())


def test_states_that_nobody_knows_are_refused():
    with pytest.raises(InvalidInput, match="found optimizer state row_norm"):
        states_of(lambda: Chunk(Layer(1, GROUPED)), ADAM | {"row_norm": torch.float32})


def test_optimizers_whose_states_lie_elsewhere_are_refused():
    chunk = Chunk(Layer(1, GROUPED))
    for kind, match in (("LayerWiseDistributedOptimizer", "dist Muon"), ("HybridDeviceOptimizer", "offload")):
        inner = type(kind, (), {"param_groups": [], "state": {}})()
        one = inner if "Layer" in kind else types.SimpleNamespace(optimizer=inner)
        chained = types.SimpleNamespace(chained_optimizers=[one])
        with pytest.raises(InvalidInput, match=match):
            MegatronState([chunk], chained, 0)


def test_ranks_that_disagree_are_refused():
    one, other = states_of(lambda: Chunk(Layer(1, GROUPED))), states_of(lambda: Chunk(Layer(2, GROUPED)))
    with pytest.raises(InvalidInput, match=r"numbers differ between ranks: found \[2\], wanted \[1\]"):
        layout_of([one[0], other[1]])
    other = states_of(lambda: Chunk(Layer(1, GROUPED)))
    other[1].optimizer.optimizer.param_groups[0]["lr"] = 2e-3
    other[1].refresh()
    with pytest.raises(InvalidInput, match="hyper-parameters of linear_fc[12].weight that differ"):
        layout_of([one[0], other[1]])
    mixed = states_of(lambda: Chunk(Layer(1, GROUPED)), ADAM | {"exp_avg": torch.bfloat16})
    with pytest.raises(InvalidInput, match="is BF16 on one rank and F32 on another|is F32 on one rank and BF16"):
        layout_of([one[0], mixed[1]])


def test_state_that_the_optimizer_made_since_makes_a_layout_outdated():
    state = states_of(lambda: Chunk(Layer(1, GROUPED)), {"master_param": torch.float32})[0]
    state.layout(EP, EDP, [state.describe()])
    assert not state.outdated()
    for shard in state.optimizer.optimizer.param_groups[0]["params"]:
        state.optimizer.optimizer.state[shard]["exp_avg"] = torch.zeros(shard.numel())
    state.refresh()
    assert state.outdated()


def test_facts_say_what_forbids_a_move():
    state = states_of(lambda: Chunk(Layer(1, GROUPED)))[0]
    state.facts().refuse_unmovable()
    (group,) = state.chunks[0].expert_parallel_bucket_groups
    group.param_gather_handle = object()
    with pytest.raises(InvalidInput, match="gather"):
        state.facts().refuse_unmovable()
    group.param_gather_handle = None
    shard = state.optimizer.optimizer.param_groups[0]["params"][0]
    moment = state.optimizer.optimizer.state[shard]["exp_avg"]
    size = moment.untyped_storage().size()
    moment.untyped_storage().resize_(0)
    with pytest.raises(InvalidInput, match="offloaded|released|host"):
        state.facts().refuse_unmovable()
    moment.untyped_storage().resize_(size)
    state.layers[0].module.config = types.SimpleNamespace(expert_gtp_weight_remat_size=2)
    with pytest.raises(InvalidInput, match="remat|EGTP"):
        state.facts().refuse_unmovable()
