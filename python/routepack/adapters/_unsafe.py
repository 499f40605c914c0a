# SPDX-License-Identifier: Apache-2.0
"""Settings of frameworks under which the gradient depends on which samples share a microbatch, as data.

With all others a plan changes the gradient by the order of sums alone: denominators are global, statistics over samples
come first, and expert-bias updates add up the whole step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Test = Literal["is", "in", "positive", "set", "falsy"]


@dataclass(frozen=True)
class Condition:
    """On one value of a configuration. Lists hold when one of their members does."""

    path: str  #: attribute or key, nested ones with dots
    test: Test
    value: Any = None  #: of 'is' and 'in'

    def holds(self, config: Any) -> bool:
        """Whether the configuration has such a value; one that is not there is None."""
        found = look_up(config, self.path)
        values = list(found) if isinstance(found, (list, tuple)) and found else [found]
        return any(self._holds(value) for value in values)

    def _holds(self, found: Any) -> bool:
        if self.test == "is":
            return bool(found == self.value)
        if self.test == "in":
            return found in self.value
        if self.test == "positive":
            return isinstance(found, (int, float)) and not isinstance(found, bool) and found > 0
        if self.test == "set":
            return found is not None and found is not False and found != ""
        return not found


@dataclass(frozen=True)
class Rule:
    """One setting that does not go with plans, or not quite."""

    frameworks: tuple[str, ...]
    setting: str  #: its name, as messages and `Settings.allow` have it
    when: tuple[Condition, ...]  #: all must hold
    refuse: bool  #: False: a warning
    why: str


@dataclass(frozen=True)
class Finding:
    """A rule that a configuration breaks."""

    setting: str
    refuse: bool
    text: str  #: one line


_MEGATRON = ("megatron", "slime", "nemo_rl")


RULES: tuple[Rule, ...] = (
    Rule(
        _MEGATRON,
        "moe_expert_capacity_factor",
        (Condition("moe_expert_capacity_factor", "positive"),),
        True,
        "which tokens an expert drops depends on the others in the microbatch",
    ),
    Rule(
        _MEGATRON,
        "moe_router_load_balancing_type=global_aux_loss",
        (
            Condition("moe_router_load_balancing_type", "is", "global_aux_loss"),
            Condition("moe_aux_loss_coeff", "positive"),
        ),
        True,
        "its running mean depends on the order of microbatches",
    ),
    Rule(
        _MEGATRON,
        "moe_router_load_balancing_type=aux_loss",
        (Condition("moe_router_load_balancing_type", "is", "aux_loss"), Condition("moe_aux_loss_coeff", "positive")),
        False,
        "it is a product of averages over each microbatch, so that its gradient differs a little",
    ),
    Rule(
        _MEGATRON,
        "moe_router_load_balancing_type=seq_aux_loss",
        (
            Condition("moe_router_load_balancing_type", "is", "seq_aux_loss"),
            Condition("moe_aux_loss_coeff", "positive"),
        ),
        False,
        "a packed microbatch counts as one sequence, so that its gradient differs a little",
    ),
    Rule(
        _MEGATRON,
        "moe_z_loss_coeff",
        (Condition("moe_z_loss_coeff", "positive"), Condition("calculate_per_token_loss", "falsy")),
        False,
        "without calculate_per_token_loss it is a mean over each microbatch",
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
)


def look_up(config: Any, path: str) -> Any:
    """A value of nested attributes or mappings, None where there is none.

    >>> look_up({"a": {"b": 3}}, "a.b"), look_up({}, "a.b")
    (3, None)
    """
    found = config
    for name in path.split("."):
        if isinstance(found, Mapping):
            found = found.get(name)
        else:
            found = getattr(found, name, None)
        if found is None:
            return None
    return found


def check_settings(framework: str, config: Any, *, allow: Iterable[str] = ()) -> Sequence[Finding]:
    """What of a framework's configuration does not go with plans.

    :param framework: 'slime', 'nemo_rl', 'megatron', 'verl' or 'areal'
    :param config: attributes or mappings, under the framework's names (NeMo RL: `policy.megatron_cfg`)
    :param allow: settings that the user accepts

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
        and all(condition.holds(config) for condition in rule.when)
    ]
