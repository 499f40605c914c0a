# SPDX-License-Identifier: Apache-2.0
"""slime, `--save-debug-rollout-data`: a torch.save of {rollout_id, samples: [Sample.to_dict()]}.

Per sample `tokens` (list), `rollout_routed_experts` int32 [len(tokens)-1, num_layers, k] or None, `group_index`,
`index`. All decoder layers, dense ones as zeros; partial rollouts are merged already. Source: slime/utils/types.py and
slime/observability/rollout_data_utils.py at commit 624b824a.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from routepack.convert import io_torch, wire
from routepack.convert.errors import FormatError, shown
from routepack.convert.limits import Limits
from routepack.convert.options import Options, Path
from routepack.convert.sample import Routes, Sample

KEY = "rollout_routed_experts"


def sample_dicts(value: Any, where: str) -> list[dict[str, Any]]:
    """The list `samples` of a dump."""
    samples = value.get("samples") if isinstance(value, dict) else None
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        raise FormatError(f"{where}, samples: found {shown(type(samples).__name__)}, wanted a list of sample dicts")
    return samples


def routes_of(sample: dict[str, Any], tokens: int, where: str, limits: Limits) -> Routes | None:
    """`rollout_routed_experts` of one sample, checked to have t-1 rows (or t)."""
    value = sample.get(KEY)
    if value is None:
        return None
    if io_torch.is_tensor(value):
        routes = io_torch.array(value, f"{where}, {KEY}")
    else:
        routes = wire.nested(value, f"{where}, {KEY}", limits)
    if routes.ndim != 3 or routes.shape[0] not in (tokens - 1, tokens):
        raise FormatError(
            f"{where}, {KEY}: found shape {list(routes.shape)}, "
            f"wanted [{tokens - 1}, layers, top_k] for {tokens} tokens"
        )
    return routes


def group_of(sample: dict[str, Any], *keys: str) -> Hashable:
    """The first of `keys` that holds a number or a name."""
    return next((sample[key] for key in keys if type(sample.get(key)) in (int, str)), None)


def id_of(sample: dict[str, Any], *keys: str) -> int | None:
    """The first of `keys` that holds a number."""
    return next((sample[key] for key in keys if type(sample.get(key)) is int), None)


def read(path: Path, options: Options) -> Iterator[Sample]:
    """Samples of a rollout dump, in its order."""
    samples = sample_dicts(io_torch.load(path, options.limits), str(path))
    for i, sample in enumerate(samples):
        where = f"{path}: sample {i}"
        tokens = io_torch.count_tokens(sample.get("tokens"), f"{where}, tokens")
        routes = routes_of(sample, tokens, where, options.limits)
        yield Sample(where, KEY, tokens, routes, group=group_of(sample, "group_index"), id=id_of(sample, "index"))
