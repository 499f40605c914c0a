# SPDX-License-Identifier: Apache-2.0
"""What the caller knows about the model and the files."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from routepack.convert.errors import FormatError, InvalidInput, IoError, shown
from routepack.convert.limits import Limits

Missing = Literal["leave-out", "spread", "refuse"]
Path = str | os.PathLike[str]
MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class Options:
    """Everything a converter may be told. What a file says itself is checked against it.

    experts: E, logical routed experts per layer. top_k: k. num_layers: decoder layers, dense ones included.
    layers: global numbers of the MoE layers, ascending; None = find out (see `layers.py`).
    missing: what `count_routes` does with rows that were not recorded.
    physical_to_logical: [L or num_layers, slots] when the ids in the file are physical slots.
    rows: whether a sample of t tokens has t or t-1 rows, for files that do not give t.
    align: «response» when row 0 is the first token of the response.
    join: the key (dotted path) by which lines of a JSON file belong to one sample.
    rollout: slime's rollout dump beside a train dump, for its routes.
    steps: keep only these steps of a trace; of a slime train dump, one optimizer step.
    """

    experts: int | None = None
    top_k: int | None = None
    num_layers: int | None = None
    layers: tuple[int, ...] | None = None
    missing: Missing = "leave-out"
    physical_to_logical: npt.NDArray[np.int64] | None = None
    rows: Literal["len", "len-1"] | None = None
    align: Literal["sequence", "response"] = "sequence"
    join: str | None = None
    rollout: Path | None = None
    steps: tuple[int, ...] | None = None
    model: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("experts", "top_k", "num_layers"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_SIZE:
                raise InvalidInput(f"option {name}: found {value}, wanted 1 to {MAX_SIZE}")
        if self.experts is not None and self.top_k is not None and self.top_k > self.experts:
            raise InvalidInput(
                f"option top_k: found {self.top_k}, wanted at most {self.experts}, the number of experts"
            )
        if self.layers is not None:
            check_layer_numbers(self.layers, self.num_layers)

    def need_experts(self) -> int:
        """E, or an error that says how to give it."""
        if self.experts is None:
            raise InvalidInput("option experts: found nothing, wanted the number of routed experts per layer")
        return self.experts


def check_layer_numbers(layers: Sequence[int], num_layers: int | None) -> None:
    """Refuses numbers that are not ascending, negative, or past the model's last layer."""
    if not layers:
        raise InvalidInput("option layers: found no number, wanted at least one MoE layer")
    for before, number in itertools.pairwise((-1, *layers)):
        if number <= before:
            raise InvalidInput(f"option layers: found {number} after {before}, wanted ascending numbers from 0")
    if num_layers is not None and layers[-1] >= num_layers:
        raise InvalidInput(f"option layers: found {layers[-1]}, wanted numbers below num_layers, {num_layers}")


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """«3-60», «0,2,4», «1-3,7» -> ascending numbers; `option` is named in messages."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        whole = all(
            part.isascii() and part.isdecimal() and len(part) < 10 for part in (first, last) if part is first or dash
        )
        if not whole:
            raise InvalidInput(f"option {option}: found {shown(text)}, wanted numbers and ranges such as 3-60 or 0,2,4")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low > 100_000:
            raise InvalidInput(f"option {option}: found the range {shown(part)}, wanted first-last")
        numbers.extend(range(low, high + 1))
    for before, number in itertools.pairwise(numbers):
        if number <= before:
            raise InvalidInput(f"option {option}: found {number} after {before}, wanted ascending numbers")
    return tuple(numbers)


def read_json(path: Path, most: int = 64 << 20) -> Any:
    """A whole JSON file of bounded size."""
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise IoError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > most:
        raise FormatError(f"{path}: found more than {most} bytes, wanted a small JSON file")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: found no valid JSON ({shown(str(error))})") from None


#: Names under which Hugging Face configurations keep the three sizes.
_CONFIG_KEYS = {
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k"),
    "num_layers": ("num_hidden_layers", "num_layers", "n_layers"),
}


def with_model_config(options: Options, path: Path) -> Options:
    """Fills what the caller left open from a Hugging Face `config.json`.

    MoE layers: `first_k_dense_replace`, `moe_layer_freq` (number or list), `decoder_sparse_step`, `mlp_only_layers`.
    """
    config = read_json(path)
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    if not isinstance(config, dict):
        raise FormatError(f"{path}: found {shown(config)}, wanted an object")
    found: dict[str, Any] = {}
    for name, keys in _CONFIG_KEYS.items():
        value = next((config[key] for key in keys if type(config.get(key)) is int), None)
        if value is not None and getattr(options, name) is None:
            found[name] = value
    merged = replace(options, **found)
    if merged.layers is None and merged.num_layers is not None:
        layers = _moe_layers(config, merged.num_layers, path)
        if layers:
            merged = replace(merged, layers=layers)
    return merged


def _moe_layers(config: dict[str, Any], num_layers: int, path: Path) -> tuple[int, ...]:
    if num_layers > 100_000:
        raise FormatError(f"{path}, num_hidden_layers: found {num_layers}, wanted at most 100000")

    def number(key: str, default: int) -> int:
        value = config.get(key, default)
        return value if type(value) is int and value >= 0 else default

    frequency = config.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        if len(frequency) != num_layers:
            raise FormatError(f"{path}, moe_layer_freq: found {len(frequency)} entries, wanted {num_layers}")
        return tuple(i for i, flag in enumerate(frequency) if flag)
    every = frequency if type(frequency) is int and frequency > 0 else 1
    step = max(number("decoder_sparse_step", 1), 1)
    dense = config.get("mlp_only_layers")
    dense = {i for i in dense if type(i) is int} if isinstance(dense, list) else set()
    first = number("first_k_dense_replace", 0)
    return tuple(i for i in range(first, num_layers) if i % every == 0 and (i + 1) % step == 0 and i not in dense)


def read_map(path: Path) -> npt.NDArray[np.int64]:
    """A `physical_to_logical` map [layers, slots]: a JSON list of lists, or a plan or placement file that holds one."""
    value = read_json(path)
    if isinstance(value, dict):
        value = value.get("physical_to_logical")
    if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
        raise FormatError(f"{path}: found {shown(value)}, wanted physical_to_logical, one list per layer")
    width = len(value[0])
    for layer, row in enumerate(value):
        if len(row) != width or not row:
            raise FormatError(f"{path}, physical_to_logical[{layer}]: found {len(row)} slots, wanted {max(width, 1)}")
        for slot, expert in enumerate(row):
            if type(expert) is not int or not 0 <= expert <= MAX_SIZE:
                raise FormatError(
                    f"{path}, physical_to_logical[{layer}][{slot}]: found {shown(expert)}, wanted an expert"
                )
    return np.array(value, dtype=np.int64)
