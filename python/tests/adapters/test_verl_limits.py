# SPDX-License-Identifier: Apache-2.0
"""What verl's own configuration and settings mean for a plan: multiples, caps, groups of ranks, and warnings.

Configurations are composed by hydra from verl's own files, as its command line does it.
"""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("verl") is None:
    pytest.skip("no verl: the adapter was NOT run against the real thing", allow_module_level=True)
try:
    import hydra

    from . import test_verl as base
except ImportError as error:
    pytest.skip(f"verl cannot be imported ({error}): the adapter was NOT run against it", allow_module_level=True)

from routepack import Topology  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Rules, check_schedule, verl  # noqa: E402

from .batches import PATIENT  # noqa: E402
from .conftest import shared  # noqa: E402

BATCH, DP, CAP, MINI = base.BATCH, base.DP, base.CAP, base.MINI
Told = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    verl.uninstall()


def composed(engine: str, actor: dict[str, Any]) -> Any:
    """verl's configuration with these of `actor_rollout_ref.actor`; `+` in front of what it does not have."""
    changes = {"ppo_max_token_len_per_gpu": CAP, "ppo_mini_batch_size": MINI // 4, "use_dynamic_bsz": True, **actor}
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose(
            "ppo_trainer",
            [
                f"model_engine={engine}",
                "actor_rollout_ref.rollout.n=4",
                *(f"{key[: key[0] == '+']}actor_rollout_ref.actor.{key.lstrip('+')}={changes[key]}" for key in changes),
            ],
        )


def megatron(**sizes: Any) -> dict[str, Any]:
    names = {
        "tensor": "megatron.tensor_model_parallel_size",
        "pipeline": "megatron.pipeline_model_parallel_size",
        "cp": "megatron.context_parallel_size",
        "ep": "megatron.expert_model_parallel_size",
        "etp": "megatron.expert_tensor_parallel_size",
        "vpp": "megatron.virtual_pipeline_model_parallel_size",
        "fp8": "+megatron.override_transformer_config.fp8",
        "group": "+megatron.override_transformer_config.microbatch_group_size_per_vp_stage",
    }
    return {names[name]: size for name, size in sizes.items()}


#: engine, settings of the actor, then: multiple of a length, of rows, cap per rank, topology
LIMITS: list[tuple[str, dict[str, Any], int, int, int, Topology]] = [
    ("megatron", {}, 1, 1, CAP, Topology(dp=DP, ep=1)),
    ("megatron", megatron(ep=2), 1, 1, CAP, Topology(dp=DP, ep=2)),
    ("megatron", megatron(tensor=2, ep=2, etp=1), 2, 1, CAP, Topology(dp=DP, ep=2, tp=2, etp=1)),
    ("megatron", megatron(tensor=2, ep=2), 2, 1, CAP, Topology(dp=DP, ep=2, tp=2, etp=2)),  # as Megatron's default
    ("megatron", megatron(cp=2, ep=4, etp=1), 4, 1, 2 * CAP, Topology(dp=DP, ep=4, cp=2)),
    ("megatron", megatron(tensor=2, cp=2, ep=8, etp=1), 8, 1, 2 * CAP, Topology(dp=DP, ep=8, tp=2, cp=2)),
    ("megatron", megatron(fp8="e4m3", ep=2), 16, 1, CAP, Topology(dp=DP, ep=2)),
    ("megatron", megatron(fp8="hybrid", tensor=3, ep=3, etp=1), 48, 1, CAP, Topology(dp=DP, ep=3, tp=3)),
    (
        "megatron",
        megatron(fp8="hybrid", tensor=2, cp=2, ep=4, etp=1),
        16,
        1,
        2 * CAP,
        Topology(dp=DP, ep=4, tp=2, cp=2),
    ),
    ("megatron", megatron(pipeline=2, ep=2), 1, 1, CAP, Topology(dp=DP, ep=2, pp=2)),  # not interleaved
    ("megatron", megatron(pipeline=2, vpp=2, ep=2), 1, 2, CAP, Topology(dp=DP, ep=2, pp=2)),
    ("megatron", megatron(pipeline=2, vpp=2, group=4, ep=2), 1, 4, CAP, Topology(dp=DP, ep=2, pp=2)),
    (
        "megatron",
        megatron(pipeline=2, vpp=2, group=3, tensor=2, cp=2, ep=4, etp=1),
        8,
        3,
        2 * CAP,
        Topology(dp=DP, ep=4, tp=2, cp=2, pp=2),
    ),
    # All experts on every rank: a sample may be split over any number of them.
    ("megatron", megatron(cp=2), 4, 1, 2 * CAP, Topology(dp=DP, ep=1)),
    ("dp", {}, 1, 1, CAP, Topology(dp=DP, ep=1)),
    ("dp", {"fsdp_config.ulysses_sequence_parallel_size": 2}, 1, 1, 2 * CAP, Topology(dp=DP, ep=1)),
    ("dp", {"ulysses_sequence_parallel_size": 4, "strategy": "fsdp2"}, 1, 1, 4 * CAP, Topology(dp=DP, ep=1)),
    (
        "veomni",
        {"veomni.ulysses_parallel_size": 2, "veomni.expert_parallel_size": 4},
        1,
        1,
        2 * CAP,
        Topology(dp=DP, ep=4, cp=2),
    ),
    # verl multiplies by the tensor-parallel size there, and by no other.
    (
        "torchtitan",
        {
            "torchtitan.tensor_parallel_size": 2,
            "torchtitan.context_parallel_size": 4,
            "torchtitan.expert_parallel_size": 8,
        },
        1,
        1,
        2 * CAP,
        Topology(dp=DP, ep=8, tp=2, cp=4),
    ),
]


@pytest.mark.parametrize(("engine", "actor", "multiple", "rows", "capacity", "topology"), LIMITS)
def test_limits_are_what_verls_configuration_says(
    engine: str, actor: dict[str, Any], multiple: int, rows: int, capacity: int, topology: Topology
) -> None:
    found = verl.limits_of(composed(engine, actor).actor_rollout_ref, DP)
    assert (found.sample_multiple, found.row_multiple, found.capacity) == (multiple, rows, capacity)
    assert found.mini_batch == MINI and found.topology.slots == DP
    assert (found.topology.ranks, found.topology.shards, found.topology.pipeline_stages) == (
        topology.ranks,
        topology.shards,
        topology.pipeline_stages,
    )


@pytest.mark.parametrize(
    ("tp", "cp", "fp8"), [(1, 1, ""), (2, 1, ""), (2, 2, ""), (1, 4, ""), (3, 1, "e4m3"), (2, 2, "hybrid")]
)
def test_lengths_are_rounded_up_as_verl_pads_them(monkeypatch: pytest.MonkeyPatch, tp: int, cp: int, fp8: str) -> None:
    """Against verl's `preprocess_thd_engine`, which fills the last one of a microbatch further for FP8."""
    util = pytest.importorskip("verl.models.mcore.util", reason="no Megatron-Core: NOT run against verl's padding")
    said = {"tensor_model_parallel_world_size": tp, "context_parallel_world_size": cp, "context_parallel_rank": 0}
    for name, value in said.items():
        monkeypatch.setattr(util.mpu, f"get_{name}", lambda value=value: value)
    lengths = [*BATCH.lengths(), 7]
    ids = torch.nested.as_nested_tensor([torch.arange(n) for n in lengths], layout=torch.jagged)
    _, packed, *_ = util.preprocess_thd_engine(ids, use_fp8_padding=bool(fp8))
    padded = packed.cu_seqlens_q_padded.diff().tolist()[:-1]
    sizes = {"tensor": tp, "cp": cp, "ep": tp * cp, "etp": 1, **({"fp8": fp8} if fp8 else {})}
    multiple = verl.limits_of(composed("megatron", megatron(**sizes)).actor_rollout_ref, DP).sample_multiple
    assert padded == [-(-n // multiple) * multiple for n in lengths[:-1]]


@pytest.mark.parametrize("group", [None, 6])
def test_rows_come_in_groups_as_megatron_asks_of_interleaved_pipelines(group: int | None) -> None:
    """What verl's engine divides by is `microbatch_group_size_per_vp_stage` of Megatron's own configuration."""
    parallel = pytest.importorskip("megatron.core.model_parallel_config", reason="no Megatron-Core: NOT run against it")
    made = parallel.ModelParallelConfig(
        pipeline_model_parallel_size=4,
        virtual_pipeline_model_parallel_size=2,
        pipeline_dtype=torch.bfloat16,
        microbatch_group_size_per_vp_stage=group,
    )
    sizes = megatron(pipeline=4, vpp=2, **({} if group is None else {"group": group}))
    limits = verl.limits_of(composed("megatron", sizes).actor_rollout_ref, DP)
    assert limits.row_multiple == made.microbatch_group_size_per_vp_stage == (group or 4)


@pytest.mark.parametrize(
    ("engine", "actor", "sp_size", "divided_by"),
    [
        ("megatron", megatron(tensor=2, ep=2, etp=1), 1, None),
        ("megatron", megatron(tensor=2, cp=2, ep=8, etp=1), 2, None),
        ("megatron", megatron(fp8="hybrid", tensor=2, cp=2, ep=4, etp=1), 2, None),
        ("megatron", megatron(fp8="e4m3", tensor=2, ep=2), 1, None),
        ("megatron", megatron(pipeline=2, vpp=2, ep=2), 1, 2),
        ("megatron", megatron(pipeline=2, vpp=2, group=3, tensor=2, ep=2, etp=1), 1, 3),
        ("megatron", megatron(pipeline=4, vpp=2, fp8="hybrid", cp=2, ep=2), 2, 4),
        ("dp", {"fsdp_config.ulysses_sequence_parallel_size": 2}, 2, None),
        ("veomni", {"veomni.ulysses_parallel_size": 2, "veomni.expert_parallel_size": 4}, 2, None),
        ("torchtitan", {"torchtitan.tensor_parallel_size": 2, "torchtitan.expert_parallel_size": 2}, 2, None),
    ],
)
def test_a_plan_keeps_these_limits_and_verls_workers_cut_by_it(
    monkeypatch: pytest.MonkeyPatch,
    planner: PlannerProcess,
    engine: str,
    actor: dict[str, Any],
    sp_size: int,
    divided_by: int | None,
) -> None:
    """Each rank's microbatches by verl's own cut, with what the engine says of itself."""
    shared(monkeypatch, planner)
    verl.install(base.settings(**PATIENT))
    group = base.Group(sp_size=sp_size, divided_by=divided_by, infer_cap=CAP)
    trainer = base.trainer_of(group)
    trainer.config = composed(engine, {**actor, "data_loader_seed": 1})
    _, metrics = base.step(trainer)
    assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/passes"] == 4.0
    limits = verl.limits_of(trainer.config.actor_rollout_ref, DP)
    rules = Rules(
        slots=DP,
        capacity=sp_size * CAP,
        sample_multiple=limits.sample_multiple,
        row_multiple=divided_by or 1,
        equal_count=True,
    )
    old, reference, *mini = group.cells
    assert len(mini) == BATCH.samples // MINI
    for made in mini:
        members = sorted(i for rank in made for cell in rank for i in cell)
        number = {sample: i for i, sample in enumerate(members)}
        rows = [[[number[i] for i in rank[r]] for rank in made] for r in range(len(made[0]))]
        check_schedule(rows, [BATCH.lengths()[i] for i in members], rules)
        assert len(members) == MINI and {len(rank) for rank in made} == {len(rows)}
    # They are the plan's, not verl's own: passes over all of the mini-batches have the same.
    planned = [[cell for made in mini for cell in made[rank]] for rank in range(DP)]
    assert old == reference == planned
    cells = np.split(verl._LAYOUTS[trainer].cells, DP)
    assert [len(rank) for rank in planned] == [len(np.unique(column[:, 0])) for column in cells]


# Settings under which microbatches matter.

TYPE, COEFFICIENT, Z = "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff"
AUX, GLOBAL = f"{TYPE}=aux_loss", f"{TYPE}=global_aux_loss"


def overrides(**values: Any) -> dict[str, Any]:
    return {f"+megatron.override_transformer_config.{name}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("actor", "named"),
    [
        (overrides(**{TYPE: "aux_loss", COEFFICIENT: 0.01, Z: 0.001}), [AUX, Z]),
        (overrides(**{TYPE: "seq_aux_loss", COEFFICIENT: 0.01}), [f"{TYPE}=seq_aux_loss"]),
        (overrides(**{TYPE: "aux_loss"}), [AUX]),  # Megatron-Bridge has 0.001 for Qwen3-MoE
        (overrides(**{TYPE: "aux_loss", COEFFICIENT: 0.0}), []),
        (overrides(**{TYPE: "none"}), []),
        (overrides(**{COEFFICIENT: 0.01}), []),  # verl's engine says none
        (overrides(**{Z: 0.001, "calculate_per_token_loss": True}), []),
        ({}, []),
    ],
)
def test_losses_of_microbatches_are_named_once_and_planned(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, actor: dict[str, Any], named: list[str]
) -> None:
    shared(monkeypatch, planner)
    verl.install(base.settings(**PATIENT))
    trainer = base.trainer_of(base.Group())
    trainer.config = composed("megatron", {**megatron(ep=2), **actor})
    for step in (1, 2):
        metrics: dict[str, Any] = {}
        trainer._balance_batch(base.batch_of(), metrics)
        assert metrics["routepack/fallback"] == 0.0
        said = warned()
        assert len(said) == (len(named) if step == 1 else 0)
        for setting, line in zip(named, said, strict=False):
            assert line.startswith(f"verl: {setting}: ")


@pytest.mark.parametrize(("model", "named"), [("GLM-4.5-Air", True), ("Qwen3-30B-A3B", False)])
def test_mbridge_has_a_loss_for_glm_alone(model: str, named: bool) -> None:
    more = {**overrides(**{COEFFICIENT: 0.01}), "megatron.vanilla_mbridge": True}
    config = composed("megatron", {**megatron(ep=2), **more}).actor_rollout_ref
    config.model.path = f"/models/{model}"
    found = verl.megatron_findings(config, base.settings())
    assert [one.setting for one in found] == [f"{TYPE}=seq_aux_loss"] * named


def test_what_is_allowed_is_not_named(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told) -> None:
    shared(monkeypatch, planner)
    verl.install(base.settings(allow=(AUX,), **PATIENT))
    trainer = base.trainer_of(base.Group())
    trainer.config = composed("megatron", {**megatron(ep=2), **overrides(**{TYPE: "aux_loss"})})
    metrics: dict[str, Any] = {}
    trainer._balance_batch(base.batch_of(), metrics)
    assert metrics["routepack/fallback"] == 0.0 and warned() == []


@pytest.mark.parametrize("actor", [{TYPE: "global_aux_loss", COEFFICIENT: 0.01}, {TYPE: "global_aux_loss"}])
def test_a_running_mean_over_microbatches_is_refused_once(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, actor: dict[str, Any]
) -> None:
    shared(monkeypatch, planner)
    verl.install(base.settings())
    trainer = base.trainer_of(base.Group())
    trainer.config = composed("megatron", {**megatron(ep=2), **overrides(**actor)})
    for step in (1, 2):
        metrics: dict[str, Any] = {}
        trainer._balance_batch(base.batch_of(), metrics)
        assert metrics["routepack/fallback"] == Reason.SETTINGS
        assert [GLOBAL in line for line in warned()] == [True] * (step == 1)


def test_megatrons_settings_are_those_of_its_engine_alone() -> None:
    said = {TYPE: "aux_loss", "moe_expert_capacity_factor": 1.0}
    actor = types.SimpleNamespace(strategy="fsdp2", megatron={"override_transformer_config": said})
    assert verl.megatron_findings(types.SimpleNamespace(actor=actor), base.settings()) == []
    actor.strategy = "megatron"
    found = verl.megatron_findings(types.SimpleNamespace(actor=actor), base.settings())
    assert [(one.refuse, one.setting) for one in found] == [(True, "moe_expert_capacity_factor"), (False, AUX)]
