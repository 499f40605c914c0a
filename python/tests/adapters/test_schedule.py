# SPDX-License-Identifier: Apache-2.0
"""The rules of a schedule and of settings: sound ones pass, and every way to break one is seen."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import importlib
import importlib.util
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routepack import Constraints
from routepack.adapters import RULES, BadSchedule, Rules, check_placement, check_schedule, check_settings

from .batches import COST

Cells = list[list[list[int]]]


@st.composite
def sound(draw: st.DrawFn) -> tuple[Cells, list[int], Rules]:
    rows, slots = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 4), min_size=rows * slots, max_size=rows * slots))
    ids = draw(st.permutations(range(sum(sizes))))
    lengths = draw(st.lists(st.integers(1, 40), min_size=len(ids), max_size=len(ids)))
    multiple = draw(st.sampled_from([1, 4]))
    left = iter(ids)
    cells = [[[next(left) for _ in range(sizes[r * slots + d])] for d in range(slots)] for r in range(rows)]
    fullest = max(sum(-(-lengths[i] // multiple) * multiple for i in cell) for row in cells for cell in row)
    return cells, lengths, Rules(slots=slots, capacity=fullest, sample_multiple=multiple)


@given(sound())
def test_sound_schedules_pass_and_one_token_less_does_not(case: tuple[Cells, list[int], Rules]) -> None:
    cells, lengths, rules = case
    check_schedule(cells, lengths, rules)
    with pytest.raises(BadSchedule, match="aligned tokens"):
        check_schedule(cells, lengths, dataclasses.replace(rules, capacity=rules.capacity - 1))


@given(sound(), st.data())
def test_a_sample_moved_doubled_or_lost_is_seen(case: tuple[Cells, list[int], Rules], data: st.DataObject) -> None:
    cells, lengths, rules = case
    rules = dataclasses.replace(rules, capacity=10**6)
    broken = copy.deepcopy(cells)
    row = data.draw(st.sampled_from(broken))
    cell = data.draw(st.sampled_from(row))
    how = data.draw(st.sampled_from(["double", "lose", "unknown", "negative", "word", "drop a cell", "add a cell"]))
    if how == "double":
        cell.append(cell[0])
    elif how == "lose":
        cell.pop()
    elif how in ("unknown", "negative", "word"):
        cell[0] = {"unknown": len(lengths), "negative": -1, "word": "0"}[how]  # type: ignore[call-overload]
    elif how == "drop a cell":
        row.remove(cell)
    else:
        row.append([])
    with pytest.raises(BadSchedule):
        check_schedule(broken, lengths, rules)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_multiple": 2}, "rows: found 1, wanted 1 or more and a multiple of 2"),
        ({"min_rows": 2}, "rows: found 1, wanted 2 or more"),
        ({"max_samples_per_cell": 1}, "row 0, slot 1: found 2 samples, wanted at most 1"),
        ({"equal_count": True}, "slot 1: found 2 samples, wanted 1"),
        ({"cell_multiple": 16}, "row 0, slot 0: found 16 aligned tokens, wanted at most 12"),
        ({"slots": 3}, "row 0: found 2 cells, wanted 3"),
    ],
)
def test_what_a_framework_asks_for_is_kept(change: dict[str, Any], message: str) -> None:
    rules = Rules(slots=2, capacity=12)
    check_schedule([[[0], [1, 2]]], [10, 5, 6], rules)
    with pytest.raises(BadSchedule, match=message):
        check_schedule([[[0], [1, 2]]], [10, 5, 6], dataclasses.replace(rules, **change))


def test_a_long_sample_may_be_alone_and_no_more() -> None:
    rules = Rules.of(Constraints(oversized="own-cell"), slots=1, capacity=5)
    check_schedule([[[0]], [[1]]], [9, 2], rules)
    with pytest.raises(BadSchedule, match="found 11 aligned tokens"):
        check_schedule([[[0, 1]]], [9, 2], rules)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([[0, 1, 2, 3]], "found shape"),
        ([[0, 1, 2, 3], [0, 1, 1, 3]], "layer 1: wanted every expert once"),
        ([[0, 1, 2, 3], [3, 2, 1, 0]], "layer 1: found experts that move"),
    ],
)
def test_a_placement_has_every_expert_once_and_may_have_to_stay(found: list[list[int]], message: str) -> None:
    here = np.tile(np.arange(4, dtype=np.int32), (2, 1))
    check_placement(here, layers=2, experts=4, unchanged=here)
    with pytest.raises(BadSchedule, match=message):
        check_placement(np.array(found, dtype=np.int32), layers=2, experts=4, unchanged=here)


def transformer(**values: Any) -> Any:
    """Megatron-Core's own."""
    module = pytest.importorskip("megatron.core.transformer", reason="no Megatron-Core: its settings were NOT checked")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module.TransformerConfig(
            **{"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "num_moe_experts": 4, **values}
        )


def slime_arguments(**values: Any) -> argparse.Namespace:
    """As slime's parser leaves them: Megatron's names and defaults, and slime's own."""
    router = {name: value for name, value in vars(transformer()).items() if name.startswith("moe_")}
    own = {
        "calculate_per_token_loss": False, "loss_type": "policy_loss", "custom_loss_function_path": None,
        "custom_pg_loss_reducer_function_path": None, "use_rollout_routing_replay": True,
    }  # fmt: skip
    return argparse.Namespace(**{**router, **own, **values})


def nemo_policy(**values: Any) -> dict[str, Any]:
    """NeMo RL's `policy`; of a checkout, if there is one, that of its example for Megatron."""
    if os.environ.get("ROUTEPACK_NEMO_RL_CHECKOUT"):
        yaml = pytest.importorskip("yaml")
        path = pathlib.Path(os.environ["ROUTEPACK_NEMO_RL_CHECKOUT"], "examples", "configs", "grpo_math_1B.yaml")
        made: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["policy"]
        made["megatron_cfg"]["enabled"] = made.setdefault("router_replay", {})["enabled"] = True
    else:
        pytest.importorskip("torch")
        from . import nemo_jobs
        from .batches import Batch

        made = nemo_jobs.config(Batch())
    for dotted, value in values.items():
        where = made
        *folders, name = dotted.split(".")
        for folder in folders:
            where = where.setdefault(folder, {})
        where[name] = value
    return made


@functools.cache
def verl_file() -> Any:
    """The configuration that verl generates for Megatron, with all defaults."""
    if importlib.util.find_spec("verl") is None:
        pytest.skip("no verl: its settings were NOT checked")
    omegaconf = pytest.importorskip("omegaconf")
    (folder,) = importlib.util.find_spec("verl").submodule_search_locations  # type: ignore[union-attr, misc]
    return omegaconf.OmegaConf.load(pathlib.Path(folder, "trainer", "config", "_generated_ppo_megatron_trainer.yaml"))


def verl_config(**values: Any) -> dict[str, Any]:
    """`actor_rollout_ref.actor` and `algorithm`, as the trainer has them."""
    config = copy.deepcopy(verl_file())
    omegaconf = pytest.importorskip("omegaconf")
    omegaconf.OmegaConf.set_struct(config, True)
    for path, value in values.items():
        full = path if path.startswith("algorithm") else f"actor_rollout_ref.{path}"
        omegaconf.OmegaConf.update(config, full, value, force_add=True)
    return {"actor": config.actor_rollout_ref.actor, "algorithm": config.algorithm}


def verl_transformer(**values: Any) -> Any:
    """verl's `override_transformer_config`, which is checked as Megatron-Core's."""
    names = {f"actor.megatron.override_transformer_config.{name}": value for name, value in values.items()}
    return verl_config(**names)["actor"].megatron.override_transformer_config


def areal_config(**values: Any) -> dict[str, Any]:
    """AReaL's dataclasses."""
    try:
        options: Any = importlib.import_module("areal.api.cli_args")
    except ImportError as error:
        pytest.skip(f"AReaL cannot be imported ({error}): its settings were NOT checked")
    megatron = {name.removeprefix("megatron."): values.pop(name) for name in list(values) if "." in name}
    actor = options.PPOActorConfig(
        experiment_name="tests", trial_name="tests", megatron=options.MegatronEngineConfig(**megatron), **values
    )
    return {"actor": actor}


MAKERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "Megatron": ("megatron", transformer),
    "slime": ("slime", slime_arguments),
    "NeMo RL": ("nemo_rl", nemo_policy),
    "verl": ("verl", verl_config),
    "verl's transformer": ("megatron", verl_transformer),
    "AReaL": ("areal", areal_config),
}
Where = list[tuple[str, dict[str, Any]]]
TYPE, COEFFICIENT = "moe_router_load_balancing_type", "moe_aux_loss_coeff"
FLEX = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
OVER = "megatron_cfg.model_overrides"
BYPASS = {
    f"algorithm.rollout_correction.{name}": value
    for name, value in {
        "bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token", "rollout_is_batch_normalize": True,
    }.items()
}  # fmt: skip


def plain(**values: Any) -> Where:
    """Settings that are Megatron's own names, wherever those are set directly."""
    return [("Megatron", values), ("slime", values), ("verl's transformer", values)]


def over(**values: Any) -> Where:
    """The same where NeMo RL takes what it has no setting of its own for."""
    return [*plain(**values), ("NeMo RL", {f"{OVER}.{name}": value for name, value in values.items()})]


def balancing(loss: str) -> Iterator[tuple[str, bool, bool, Where]]:
    many: list[Where] = [
        plain(moe_router_load_balancing_type=loss, moe_aux_loss_coeff=1e-3),
        plain(moe_router_load_balancing_type=["none", loss], moe_aux_loss_coeff=[0.0, 1e-3]),
        [  # who sets no coefficient gets the model's
            ("verl's transformer", {TYPE: loss}),
            ("NeMo RL", {f"megatron_cfg.{TYPE}": loss}),
            ("NeMo RL", {f"megatron_cfg.{TYPE}": loss, f"{OVER}.{COEFFICIENT}": 1e-3}),
            ("NeMo RL", {f"megatron_cfg.{TYPE}": loss, f"megatron_cfg.{COEFFICIENT}": 0.0}),  # nobody reads that
        ],
    ]
    for where in many:
        yield f"{TYPE}={loss}", loss == "global_aux_loss", False, where


#: what is found, by its name; whether it is refused; whether it takes moves; by which settings of which framework
FOUND: list[tuple[str, bool, bool, Where]] = [
    ("moe_expert_capacity_factor", True, False, over(moe_expert_capacity_factor=1.25)),
    (f"{TYPE}=sinkhorn", True, False, plain(moe_router_load_balancing_type="sinkhorn")),
    (f"{TYPE}=sinkhorn", True, False, [("NeMo RL", {f"megatron_cfg.{TYPE}": "sinkhorn"})]),
    *(case for loss in ("global_aux_loss", "aux_loss", "seq_aux_loss") for case in balancing(loss)),
    ("moe_z_loss_coeff", False, False, plain(moe_z_loss_coeff=1e-3)),
    ("moe_z_loss_coeff", False, False, [("verl's transformer", {"moe_z_loss_coeff": "1e-3"})]),
    ("moe_router_fusion", False, False, [("slime", {"moe_router_fusion": True})]),
    ("moe_router_fusion", False, False, [("NeMo RL", {f"{OVER}.moe_router_fusion": True})]),
    ("moe_router_fusion", False, False, plain(moe_router_fusion=True, moe_enable_routing_replay=True)[::2]),
    ("moe_router_group_topk", False, True, over(moe_router_num_groups=2, moe_router_group_topk=1)),
    (
        "moe_router_group_topk",
        False,
        True,
        [("NeMo RL", {"megatron_cfg.moe_router_num_groups": 2, "megatron_cfg.moe_router_group_topk": 1})],
    ),
    ("moe_flex_dispatcher_backend=deepep", False, True, plain(**FLEX)),
    (
        "moe_flex_dispatcher_backend=deepep",
        False,
        True,
        [("NeMo RL", {f"megatron_cfg.{n}": value for n, value in {**FLEX, "moe_router_dtype": None}.items()})],
    ),
    ("moe_enable_deepep", False, True, plain(moe_enable_deepep=True, moe_token_dispatcher_type="flex")),
    (
        "moe_enable_deepep",
        False,
        True,
        [("NeMo RL", {"megatron_cfg.moe_enable_deepep": True, "megatron_cfg.moe_router_dtype": None})],
    ),
    (
        "custom_loss_function_path",
        False,
        False,
        [("slime", {"loss_type": "custom_loss", "custom_loss_function_path": "mine.loss"})],
    ),
    (
        "custom_pg_loss_reducer_function_path",
        False,
        False,
        [("slime", {"custom_pg_loss_reducer_function_path": "mine.reducer"})],
    ),
    *(
        ("actor.policy_loss.loss_mode", True, False, [("verl", {"actor.policy_loss.loss_mode": mode})])
        for mode in ("clip_cov", "kl_cov", "geo_mean")
    ),
    ("algorithm.rollout_correction.rollout_is_batch_normalize", True, False, [("verl", BYPASS)]),
    (
        "actor.policy_loss.rollout_correction.rollout_is_batch_normalize",
        True,
        False,
        [
            (
                "verl",
                {
                    "actor.policy_loss.loss_mode": "bypass_mode",
                    **{name.replace("algorithm", "actor.policy_loss"): value for name, value in BYPASS.items()},
                },
            )
        ],
    ),
    (
        "actor.loss_agg_mode=seq-mean-token-sum-norm",
        False,
        False,
        [("verl", {"actor.loss_agg_mode": "seq-mean-token-sum-norm"})],
    ),
    ("actor.m2_threshold", True, False, [("AReaL", {"m2_threshold": 0.04})]),
    (
        "actor.megatron.bridge_type=megatron-bridge",
        False,
        False,
        [("AReaL", {"megatron.bridge_type": "megatron-bridge"})],
    ),
]
HARMLESS: list[Where] = [
    [(name, {}) for name in MAKERS],
    *(
        [
            *plain(moe_router_load_balancing_type=loss, moe_aux_loss_coeff=0.0),
            *plain(moe_router_load_balancing_type=["none", loss], moe_aux_loss_coeff=[0.01, 0.0]),
            ("NeMo RL", {f"megatron_cfg.{TYPE}": loss, f"{OVER}.{COEFFICIENT}": 0.0}),
        ]
        for loss in ("global_aux_loss", "aux_loss", "seq_aux_loss")
    ),
    plain(moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.01),
    plain(moe_z_loss_coeff=0.001, calculate_per_token_loss=True),
    [("NeMo RL", {f"{OVER}.moe_z_loss_coeff": 0.001})],  # it sets calculate_per_token_loss by itself
    [("NeMo RL", {"megatron_cfg.enabled": False, f"megatron_cfg.{TYPE}": "global_aux_loss"})],
    [("Megatron", {"moe_router_fusion": True})],
    [("slime", {"moe_router_fusion": True, "use_rollout_routing_replay": False})],
    over(moe_router_num_groups=1, moe_router_group_topk=1),
    plain(moe_router_dtype="fp32", **FLEX),
    [("NeMo RL", {"megatron_cfg.moe_enable_deepep": True, "megatron_cfg.moe_router_dtype": "fp64"})],
    plain(moe_router_dtype="fp32", moe_enable_deepep=True, moe_token_dispatcher_type="flex"),
    [("verl", {"actor.loss_agg_mode": "seq-mean-token-sum-norm", "actor.loss_scale_factor": 1024})],
    *([("verl", {**BYPASS, f"algorithm.rollout_correction.{name}": value})] for name, value in (
        ("bypass_mode", False), ("loss_type", "ppo_clip"), ("rollout_is", None), ("rollout_is_batch_normalize", False),
    )),
    [("slime", {"custom_loss_function_path": "mine.loss"})],  # not used by its loss_type
]  # fmt: skip


EACH = [
    pytest.param(setting, refuse, moving, maker, values, id=f"{setting}, {maker}")
    for setting, refuse, moving, where in FOUND
    for maker, values in where
]


@pytest.mark.parametrize(("setting", "refuse", "moving", "maker", "values"), EACH)
def test_a_setting_is_found_by_its_name_in_the_frameworks_own_configuration(
    setting: str, refuse: bool, moving: bool, maker: str, values: dict[str, Any]
) -> None:
    framework, make = MAKERS[maker]
    config = make(**values)
    (found,) = check_settings(framework, config, moving=True)
    assert (found.setting, found.refuse) == (setting, refuse) and found.text.startswith(f"{setting}: ")
    assert check_settings(framework, config) == ([] if moving else [found])
    assert check_settings(framework, config, allow=[setting], moving=True) == []
    assert check_settings("another", config, moving=True) == []


@pytest.mark.parametrize(("maker", "values"), [case for where in HARMLESS for case in where])
def test_harmless_settings_are_not_mentioned(maker: str, values: dict[str, Any]) -> None:
    framework, make = MAKERS[maker]
    assert check_settings(framework, make(**values), moving=True) == []


def test_every_rule_has_a_case() -> None:
    """A rule that no configuration of its framework breaks would be one that nobody can break."""
    found = {(MAKERS[maker][0], setting) for setting, _, _, where in FOUND for maker, _ in where}
    assert found == {(framework, rule.setting) for rule in RULES for framework in rule.frameworks}


def test_verls_trainer_hands_over_what_is_looked_up() -> None:
    """Those of the algorithm are not the actor's."""
    from routepack.adapters import Settings, verl

    class Trainer:
        def __init__(self, **values: Any) -> None:
            made = verl_config(**values)
            omegaconf = pytest.importorskip("omegaconf")
            self.config = omegaconf.OmegaConf.create(
                {"actor_rollout_ref": {"actor": made["actor"]}, "algorithm": made["algorithm"]}
            )

    for values, found in ((BYPASS, True), ({}, False)):
        session = verl.session_of(Trainer(**values), Settings(cost=COST))
        try:
            assert ("rollout_is_batch_normalize" in str(session._refused)) == found
        finally:
            session.close()


def test_nemo_rl_reads_what_is_looked_up() -> None:
    """Free settings of the model come from `model_overrides`, what is named beside it from there, and tokens count."""
    folder = os.environ.get("ROUTEPACK_NEMO_RL_CHECKOUT")
    if not folder:
        pytest.skip("ROUTEPACK_NEMO_RL_CHECKOUT names no checkout: NeMo RL's own code was NOT read")
    text = pathlib.Path(folder, "nemo_rl", "models", "megatron", "setup.py").read_text(encoding="utf-8")
    assert re.search(r'config\["megatron_cfg"\]\.get\("model_overrides"\)', text)
    assert "model_cfg.calculate_per_token_loss = True" in text
    named = set(re.findall(r'config\["megatron_cfg"\]\[\s*"(moe_\w+)"', text))
    assert {TYPE, "moe_router_dtype", "moe_enable_deepep", "moe_router_group_topk"} <= named
    assert not {COEFFICIENT, "moe_expert_capacity_factor", "moe_z_loss_coeff", "moe_router_fusion"} & named


def test_the_table_of_the_documentation_is_what_is_checked(root: pathlib.Path) -> None:
    """Every rule has a row with its name, its frameworks, and what becomes of it; no row says more."""
    labels = {"Megatron": "megatron", "slime": "slime", "NeMo RL": "nemo_rl", "verl": "verl", "AReaL": "areal"}
    text = (root / "docs" / "frameworks" / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Settings that do not go with plans")[2].partition("\n## ")[0]
    said = set()
    for line in table.splitlines():
        if not line.startswith("| `"):
            continue
        names, frameworks, kind, _ = (part.strip() for part in line.strip("|").split(" | "))
        for name in re.findall(r"`([^`]+)`", names):
            for label in frameworks.split(", "):
                said.add((labels[label], name, kind))
    wanted = set()
    for rule in RULES:
        kind = "refused" if rule.refuse else "warning, if experts move" if rule.moving else "warning"
        wanted |= {(framework, rule.setting, kind) for framework in rule.frameworks}
        if rule.frameworks == ("megatron",) and rule.setting != "moe_router_fusion":  # verl's replay is its own
            wanted.add(("verl", rule.setting, kind))
    assert said == wanted
