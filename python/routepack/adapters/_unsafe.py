# SPDX-License-Identifier: Apache-2.0
"""Settings of frameworks under which the gradient depends on which samples share a microbatch, as data.

With all others a plan changes the gradient by the order of sums alone: denominators are global, statistics over samples
come first, and expert-bias updates add up the whole step. Settings that only make plans less useful are here, too, as
warnings.

Sources: Megatron-Core 0.16.1 (megatron/core/transformer/moe/router.py, moe_utils.py, token_dispatcher.py), NeMo RL at
commit 7ea279ab (nemo_rl/models/megatron/setup.py), verl 0.9.1 (verl/trainer/ppo/core_algos.py,
rollout_corr_helper.py), AReaL 1.0.4 (areal/trainer/ppo/actor.py, areal/models/mcore/registry.py), slime at commit
624b824a.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Test = Literal["is", "in", "other", "above", "set", "falsy"]


@dataclass(frozen=True)
class Condition:
    """On one value of a configuration. Lists hold when one of their members does."""

    path: str  #: attribute or key, nested ones with dots; of several, between «|», the first that is there counts
    test: Test
    value: Any = None  #: of 'is', 'in' and 'other' (none of these), and of 'above', a number

    def holds(self, config: Any) -> bool:
        """Whether the configuration has such a value; one that is not there is None."""
        return any(self._holds(value) for value in _members(look_up(config, self.path)))

    def _holds(self, found: Any) -> bool:
        if self.test == "is":
            return bool(found == self.value)
        if self.test == "in":
            return found in self.value
        if self.test == "other":
            return found not in self.value
        if self.test == "above":
            number = _number(found)
            return number is not None and number > self.value
        if self.test == "set":
            return found is not None and found is not False and found != ""
        return not found


@dataclass(frozen=True)
class Balancing:
    """A loss of Megatron's router is named, and its coefficient is not said to be 0.

    A coefficient that is not there is one that something else sets: Megatron-Bridge's providers and verl's conversion
    of Hugging Face configurations have 1e-3 for many models.
    """

    loss: str
    type: str  #: where losses are named, one or a list, as in `Condition.path`
    coefficient: str  #: where their coefficients are, one or a list as long

    def holds(self, config: Any) -> bool:
        """Whether that loss may be on."""
        losses = _members(look_up(config, self.type))
        coefficients = _members(look_up(config, self.coefficient))
        if len(coefficients) != len(losses):
            coefficients = coefficients[:1] * len(losses)
        return any(
            loss == self.loss and _number(coefficient) != 0.0
            for loss, coefficient in zip(losses, coefficients, strict=True)
        )


@dataclass(frozen=True)
class Rule:
    """One setting that does not go with plans, or not quite."""

    frameworks: tuple[str, ...]
    setting: str  #: its name, as messages and `Settings.allow` have it
    when: tuple[Condition | Balancing, ...]  #: all must hold
    refuse: bool  #: False: a warning
    why: str
    moving: bool = False  #: matters only where experts move


@dataclass(frozen=True)
class Finding:
    """A rule that a configuration breaks."""

    setting: str
    refuse: bool
    text: str  #: one line


def _of_megatron(
    frameworks: tuple[str, ...],
    *,
    places: tuple[str, ...] = ("",),
    coefficients: str = "moe_aux_loss_coeff",
    replay: str,
    per_token: bool = False,
    given: tuple[Condition, ...] = (),
) -> tuple[Rule, ...]:
    """Of what Megatron-Core's router does.

    :param places: where its settings are, the first that has one counts
    :param coefficients: where alone those of auxiliary losses are read from
    :param replay: what says whether it replays routes
    :param per_token: the framework sets `calculate_per_token_loss` by itself
    :param given: what must hold as well
    """

    def at(name: str) -> str:
        return "|".join(f"{place}{name}" for place in places)

    def balancing(loss: str, refuse: bool, why: str) -> Rule:
        on = Balancing(loss, at("moe_router_load_balancing_type"), coefficients)
        return Rule(frameworks, f"moe_router_load_balancing_type={loss}", (*given, on), refuse, why)

    def deepep(setting: str, *when: Condition) -> Rule:
        loose = Condition(at("moe_router_dtype"), "other", ("fp32", "fp64"))
        why = (
            "unless moe_router_dtype is fp32 or fp64, an expert whose probability is rounded to 0 ties with those that "
            "were not chosen, and DeepEP breaks ties by slot"
        )
        return Rule(frameworks, setting, (*given, *when, loose), False, why, moving=True)

    enabled = at("moe_enable_deepep")
    rules = [
        Rule(
            frameworks,
            "moe_expert_capacity_factor",
            (*given, Condition(at("moe_expert_capacity_factor"), "above", 0)),
            True,
            "which tokens an expert drops depends on the others in the microbatch",
        ),
        Rule(
            frameworks,
            "moe_router_load_balancing_type=sinkhorn",
            (*given, Condition(at("moe_router_load_balancing_type"), "is", "sinkhorn")),
            True,
            "where a token goes depends on the others in the microbatch, and routes are not replayed",
        ),
        balancing("global_aux_loss", True, "its running mean depends on the order of microbatches"),
        balancing(
            "aux_loss", False, "it is a product of averages over each microbatch, so that its gradient differs a little"
        ),
        balancing(
            "seq_aux_loss", False, "a packed microbatch counts as one sequence, so that its gradient differs a little"
        ),
        Rule(
            frameworks,
            "moe_router_fusion",
            (*given, Condition(at("moe_router_fusion"), "set"), Condition(replay, "set")),
            False,
            "the fused router does not replay routes: tokens are routed anew, and the plan is for other loads",
        ),
        Rule(
            frameworks,
            "moe_router_group_topk",
            (
                *given,
                Condition(at("moe_router_num_groups"), "above", 1),
                Condition(at("moe_router_group_topk"), "above", 0),
            ),
            False,
            "groups of experts keep a token on few ranks only while experts are at home: it goes to more of them after "
            "moves",
            moving=True,
        ),
        deepep("moe_enable_deepep", Condition(enabled, "set")),
        deepep(
            "moe_flex_dispatcher_backend=deepep",
            Condition(enabled, "falsy"),
            Condition(at("moe_token_dispatcher_type"), "is", "flex"),
            Condition(at("moe_flex_dispatcher_backend"), "is", "deepep"),
        ),
    ]
    if not per_token:
        rules.append(
            Rule(
                frameworks,
                "moe_z_loss_coeff",
                (
                    *given,
                    Condition(at("moe_z_loss_coeff"), "above", 0),
                    Condition(at("calculate_per_token_loss"), "falsy"),
                ),
                False,
                "without calculate_per_token_loss it is a mean over each microbatch",
            )
        )
    return tuple(rules)


RULES: tuple[Rule, ...] = (
    *_of_megatron(("megatron",), replay="moe_enable_routing_replay"),
    *_of_megatron(("slime",), replay="use_rollout_routing_replay"),
    *_of_megatron(
        ("nemo_rl",),
        places=("megatron_cfg.model_overrides.", "megatron_cfg."),
        coefficients="megatron_cfg.model_overrides.moe_aux_loss_coeff",
        replay="router_replay.enabled",
        per_token=True,
        given=(Condition("megatron_cfg.enabled", "set"),),
    ),
    Rule(
        ("slime",),
        "custom_loss_function_path",
        (Condition("loss_type", "is", "custom_loss"), Condition("custom_loss_function_path", "set")),
        False,
        "whether this loss depends on which samples share a microbatch is not known",
    ),
    Rule(
        ("slime",),
        "custom_pg_loss_reducer_function_path",
        (Condition("custom_pg_loss_reducer_function_path", "set"),),
        False,
        "whether this reducer depends on which samples share a microbatch is not known",
    ),
    Rule(
        ("verl",),
        "actor.policy_loss.loss_mode",
        (Condition("actor.policy_loss.loss_mode", "in", ("clip_cov", "kl_cov", "geo_mean")),),
        True,
        "it takes means or the largest values over each microbatch",
    ),
    *(
        Rule(
            ("verl",),
            f"{place}.rollout_is_batch_normalize",
            (
                on,
                Condition(f"{place}.loss_type", "is", "reinforce"),
                Condition(f"{place}.rollout_is", "set"),
                Condition(f"{place}.rollout_is_batch_normalize", "set"),
            ),
            True,
            "this loss divides its weights by their mean over the microbatches that run at the same time",
        )
        for place, on in (
            ("algorithm.rollout_correction", Condition("algorithm.rollout_correction.bypass_mode", "set")),
            ("actor.policy_loss.rollout_correction", Condition("actor.policy_loss.loss_mode", "is", "bypass_mode")),
        )
    ),
    Rule(
        ("verl",),
        "actor.loss_agg_mode=seq-mean-token-sum-norm",
        (
            Condition("actor.loss_agg_mode", "is", "seq-mean-token-sum-norm"),
            Condition("actor.loss_scale_factor", "falsy"),
        ),
        False,
        "without loss_scale_factor its horizon may be the width of each microbatch",
    ),
    Rule(
        ("areal",),
        "actor.m2_threshold",
        (Condition("actor.m2_threshold", "set"),),
        True,
        "it sorts the tokens of each microbatch",
    ),
    Rule(
        ("areal",),
        "actor.megatron.bridge_type=megatron-bridge",
        (Condition("actor.megatron.bridge_type", "is", "megatron-bridge"),),
        False,
        "AReaL leaves the auxiliary losses on that Megatron-Bridge has for the model (aux_loss for Qwen3-MoE, "
        "global_aux_loss for Qwen3-Next and Qwen3.5), and their gradients depend on microbatches a little",
    ),
)


def look_up(config: Any, path: str) -> Any:
    """A value of nested attributes or mappings, None where there is none.

    >>> look_up({"a": {"b": 3}}, "a.b"), look_up({"b": 4}, "a.b|b"), look_up({}, "a.b")
    (3, 4, None)
    """
    for place in path.split("|"):
        found = config
        for name in place.split("."):
            found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
            if found is None:
                break
        if found is not None:
            return found
    return None


def check_settings(
    framework: str, config: Any, *, allow: Iterable[str] = (), moving: bool = False
) -> Sequence[Finding]:
    """What of a framework's configuration does not go with plans.

    :param framework: 'slime', 'nemo_rl', 'megatron', 'verl' or 'areal'; nothing is known of others
    :param config: attributes or mappings, under the framework's names. slime: its arguments; Megatron-Core: the
        TransformerConfig; NeMo RL: `policy`; verl: `actor_rollout_ref`, with `algorithm` beside `actor` (what is in
        `actor.megatron.override_transformer_config` is Megatron-Core's); AReaL: `{"actor": …}`
    :param allow: settings that the user accepts
    :param moving: experts move

    >>> found = check_settings("slime", {"moe_expert_capacity_factor": 1.25})
    >>> found[0].refuse, found[0].text
    (True, 'moe_expert_capacity_factor: which tokens an expert drops depends on the others in the microbatch')
    """
    accepted = set(allow)
    return [
        Finding(rule.setting, rule.refuse, f"{rule.setting}: {rule.why}")
        for rule in RULES
        if framework in rule.frameworks
        and rule.setting not in accepted
        and (moving or not rule.moving)
        and all(condition.holds(config) for condition in rule.when)
    ]


def remedy(finding: Finding) -> str:
    """What a user can do about a setting that is refused."""
    return f"remove it, or accept that with allow=({finding.setting!r},)"


def _members(found: Any) -> list[Any]:
    several = isinstance(found, Sequence) and not isinstance(found, str) and len(found) > 0
    return list(found) if several else [found]


def _number(found: Any) -> float | None:
    """Numbers, and words that say one, as YAML reads 1e-3."""
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        return None
    try:
        return float(found)
    except ValueError:
        return None
