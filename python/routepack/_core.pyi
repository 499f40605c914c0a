"""The compiled part of routepack. Import routepack instead."""

from collections.abc import Callable, Sequence
import os
from typing import Any

import numpy
import numpy.typing

import routepack.team.communicator


version: str = '0.1.0'

class Window:
    """
    What one optimizer step trains on: lengths, and how many tokens of each sample every expert of every layer gets.

    Immutable; arrays are read-only views.
    """

    @staticmethod
    def from_arrays(*, lengths: Any, counts: Any, top_k: int, recorded: Any = None, groups: Any = None, atomic: Any = None, pad_counts: Any = None, ids: Any = None, layers: Sequence[int] | None = None, model: str | None = None, kind: str = 'samples') -> Window:
        """
        A window over arrays of numpy, CPU torch, or anything with DLPack or the buffer protocol, without a copy.

        lengths int32 [N], counts uint16, uint32 or int32 [N, L, E], recorded int32 [N] or [N, L], groups and
        atomic int32 [N], pad_counts uint32 [L, E], ids int64 [N]. The arrays must not change afterwards.

        >>> import numpy as np
        >>> counts = np.array([[[3, 1]], [[0, 2]]], dtype=np.uint16)
        >>> window = Window.from_arrays(lengths=np.array([4, 2], dtype=np.int32), counts=counts, top_k=1)
        >>> window.samples, window.layers, window.experts
        (2, 1, 2)
        """

    @staticmethod
    def load(path: str | os.PathLike) -> Window:
        """
        Maps a window file, or the files that a manifest names. Counts are used in place.
        """

    def save(self, path: str | os.PathLike) -> None:
        """Writes a window file, whole or not at all."""

    @property
    def samples(self) -> int:
        """N"""

    @property
    def layers(self) -> int:
        """L, MoE layers"""

    @property
    def experts(self) -> int:
        """E, routed experts per layer"""

    @property
    def top_k(self) -> int:
        """Experts chosen per token"""

    @property
    def kind(self) -> str:
        """'samples', or 'aggregate' for demand without sample identity"""

    @property
    def model(self) -> str:
        """Free text, may be empty"""

    @property
    def layer_numbers(self) -> list[int]:
        """Global numbers of the layers, or empty"""

    @property
    def metadata(self) -> dict[str, str]:
        """Other metadata of the file"""

    @property
    def counts(self) -> numpy.typing.NDArray[Any]:
        """
        uint16 or uint32 [N, L, E]; InvalidInput for a window in parts, which has part_counts
        """

    @property
    def part_counts(self) -> list[numpy.typing.NDArray[Any]]:
        """
        uint16 or uint32 [N_k, L, E] of each part, in the order of the samples; of a window that is not in parts, its counts alone
        """

    @property
    def lengths(self) -> Any:
        """int32 [N]; None in an aggregate without lengths"""

    @property
    def recorded(self) -> numpy.typing.NDArray[numpy.int32] | None:
        """int32 [N] or [N, L]"""

    @property
    def groups(self) -> numpy.typing.NDArray[numpy.int32] | None:
        """int32 [N]"""

    @property
    def atomic(self) -> numpy.typing.NDArray[numpy.int32] | None:
        """int32 [N]"""

    @property
    def pad_counts(self) -> numpy.typing.NDArray[numpy.uint32] | None:
        """uint32 [L, E]"""

    @property
    def ids(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """int64 [N]"""

    @property
    def fingerprint(self) -> str:
        """«xxh3:» and 16 hex digits over the content; streams over the counts"""

    def __repr__(self) -> str: ...

def count_routes(ids: Any, experts: int, mask: Any, missing: str, layers: Sequence[int] | None, physical_to_logical: Any, length: int | None, invalid: str) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int32]]: ...

def count_routes_batch(ids: list[Any], experts: int, masks: list[Any], missing: str, layers: Sequence[int] | None, physical_to_logical: Any, lengths: Sequence[int | None], invalid: str, threads: int) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int32]]: ...

class WindowBuilder:
    def __init__(self, experts: int, top_k: int, layers: Sequence[int] | None, model: str | None, pad_counts: object | None, memory_bytes: int, spill_folder: str | os.PathLike | None) -> None: ...

    def add_routes(self, ids: Any, length: int, mask: Any, id: int | None, group: int | None, atomic: int | None, missing: str, invalid: str, layers: Sequence[int] | None, physical_to_logical: Any) -> numpy.typing.NDArray[numpy.int32]: ...

    def add_counts(self, counts: Any, length: int, recorded: Any, id: int | None, group: int | None, atomic: int | None) -> None: ...

    def merge(self, part: Window, where: str) -> None: ...

    @property
    def samples(self) -> int: ...

    def window(self) -> Window: ...

    def seal(self, path: str | os.PathLike) -> None: ...

def join_windows(parts: Sequence[Window]) -> Window: ...

class Topology:
    """Which data-parallel slots meet in which expert-parallel communicator."""

    def __init__(self, dp: int, ep: int, tp: int = 1, cp: int = 1, etp: int = 1, pp: int = 1) -> None:
        """
        Sizes of Megatron's parallel groups.

        >>> Topology(dp=4, ep=2).shards
        [[0, 1], [2, 3]]
        """

    @staticmethod
    def from_shards(ep: int, shards: Sequence[Sequence[int]], pp: int = 1) -> Topology:
        """Slots shard by shard, and the ranks of each shard's communicator."""

    @property
    def slots(self) -> int:
        """D, data-parallel slots"""

    @property
    def ranks(self) -> int:
        """P, expert-parallel ranks of a communicator"""

    @property
    def pipeline_stages(self) -> int: ...

    @property
    def shards(self) -> list[list[int]]:
        """Slots of each shard"""

    def __repr__(self) -> str: ...

class Stage:
    """
    One type of attention: alpha per token, beta per pair of tokens, both per cap.
    """

    def __init__(self, name: str, alpha: float = 0.0, beta: float = 0.0) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def alpha(self) -> float: ...

    @property
    def beta(self) -> float: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class CostModel:
    """What a token costs on the dense side and on the expert side."""

    def __init__(self, stages: Sequence[Stage], expert: float | Sequence[float] = 1.0) -> None:
        """
        Stages in order of evaluation; `expert` is one weight, or one per MoE layer.

        >>> CostModel([Stage("full", alpha=60.0, beta=200.0)]).expert
        [1.0]
        """

    @staticmethod
    def load(path: str | os.PathLike) -> CostModel:
        """Reads a cost file (TOML)."""

    @staticmethod
    def parse(toml: str, where: str = 'cost') -> CostModel:
        """The same from text."""

    @staticmethod
    def file_template() -> str:
        """A commented cost file to start from."""

    def to_toml(self) -> str: ...

    @property
    def stages(self) -> list[Stage]: ...

    @property
    def expert(self) -> list[float]:
        """One weight, or one per MoE layer"""

    def __eq__(self, arg: object, /) -> bool: ...

class Placement:
    """
    Which physical slot, and so which rank, holds each expert of each layer.
    """

    @staticmethod
    def identity(layers: int, experts: int, ranks: int) -> Placement:
        """
        Expert e in slot e.

        >>> Placement.identity(layers=1, experts=4, ranks=2).physical_to_logical.tolist()
        [[0, 1, 2, 3]]
        """

    @staticmethod
    def from_maps(*, ranks: int, physical_to_logical: Any) -> Placement:
        """From int32 [L, E]: the logical expert in each slot."""

    @staticmethod
    def load(path: str | os.PathLike) -> Placement:
        """Reads a placement file or a plan file."""

    def save(self, path: str | os.PathLike, epoch: int = 0) -> None:
        """Writes a placement file."""

    def to_json(self, epoch: int = 0) -> str: ...

    @property
    def layers(self) -> int: ...

    @property
    def experts(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def physical_to_logical(self) -> numpy.typing.NDArray[numpy.int32]:
        """int32 [L, E]: the logical expert in each slot"""

    @property
    def logical_to_physical(self) -> numpy.typing.NDArray[numpy.int32]:
        """int32 [L, E]: the slot of each expert"""

    @property
    def rank_of(self) -> numpy.typing.NDArray[numpy.int32]:
        """int32 [L, E]: the rank that serves each expert"""

    @property
    def fingerprint(self) -> str: ...

    def __getstate__(self) -> tuple[int, numpy.typing.NDArray[numpy.int32]]: ...

    def __setstate__(self, arg: tuple[int, object], /) -> None: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Constraints:
    """What a layout must respect beyond the token cap."""

    def __init__(self, *, sample_multiple: int = 1, cell_multiple: int = 1, min_rows: int = 1, row_multiple: int = 1, equal_count: bool = False, add_dummies: bool = False, max_samples_per_cell: int = 0, max_rank_tokens: int = 0, oversized: str = 'error') -> None: ...

    @property
    def sample_multiple(self) -> int:
        """round each sample up to this many tokens for the cap (1 to 94906265)"""

    @sample_multiple.setter
    def sample_multiple(self, value: int, /) -> None: ...

    @property
    def cell_multiple(self) -> int:
        """round each cell up to this many tokens for the cap (1 to 94906265)"""

    @cell_multiple.setter
    def cell_multiple(self, value: int, /) -> None: ...

    @property
    def min_rows(self) -> int:
        """use at least this many rows (1 to 2147483647)"""

    @min_rows.setter
    def min_rows(self, value: int, /) -> None: ...

    @property
    def row_multiple(self) -> int:
        """use a multiple of this many rows (1 to 2147483647)"""

    @row_multiple.setter
    def row_multiple(self, value: int, /) -> None: ...

    @property
    def equal_count(self) -> bool:
        """give every slot the same number of samples"""

    @equal_count.setter
    def equal_count(self, value: bool, /) -> None: ...

    @property
    def add_dummies(self) -> bool:
        """with equal-count: fill up with one-token samples without routes"""

    @add_dummies.setter
    def add_dummies(self, value: bool, /) -> None: ...

    @property
    def max_samples_per_cell(self) -> int:
        """samples in a cell at most (0 = no limit) (0 to 2147483647)"""

    @max_samples_per_cell.setter
    def max_samples_per_cell(self, value: int, /) -> None: ...

    @property
    def max_rank_tokens(self) -> int:
        """
        routed tokens of a rank in one row and layer at most, the out-of-memory guard (0 = no limit) (0 to 4503599627370496)
        """

    @max_rank_tokens.setter
    def max_rank_tokens(self, value: int, /) -> None: ...

    @property
    def oversized(self) -> str:
        """
        a sample over the cap is an error, or gets its own cell: 'error', 'own-cell'
        """

    @oversized.setter
    def oversized(self, value: str, /) -> None: ...

    def as_dict(self) -> dict[str, Any]:
        """Every option and its value."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class SearchParams:
    """The search for a layout. Budgets are counted, never timed."""

    def __init__(self, *, seeds: int = 4, choice_width: int = 4, diversity: float = 4, population: int = 1, block_rows: int = 3, rounds: int = 6, levels: int = 24, proposals_per_sample: int = 768, most_proposals: int = 2147483648, adaptive_temperatures: bool = True, hot: float = 0.1, cold: float = 0.003, paper_energy: bool = False, mean_share: float = 0.5, guided_share: float = 0, relocation_share: float = 0.05, near_share: float = 0.97, near_width: float = 0.03, tolerance: float = 0.0001, refinements: int = 2, repack_share: float = 0.25, repack_hot: float = 0.25, refine_steps: int = 4194304, kicks: int = 10) -> None: ...

    @property
    def seeds(self) -> int:
        """
        M: layouts that the seeding tries; the first two need no chance (1 to 4096)
        """

    @seeds.setter
    def seeds(self, value: int, /) -> None: ...

    @property
    def choice_width(self) -> int:
        """w: randomised choices are made among so many (1 to 4096)"""

    @choice_width.setter
    def choice_width(self, value: int, /) -> None: ...

    @property
    def diversity(self) -> float:
        """
        eta: what a unit of score gap weighs against a unit of distance (0 to 1000000)
        """

    @diversity.setter
    def diversity(self, value: float, /) -> None: ...

    @property
    def population(self) -> int:
        """P_pop: layouts annealed side by side, without blocks (1 to 4096)"""

    @population.setter
    def population(self, value: int, /) -> None: ...

    @property
    def block_rows(self) -> int:
        """
        row-shards that one thread anneals alone between two shuffles; 0: a population of whole layouts (0 to 1048576)
        """

    @block_rows.setter
    def block_rows(self, value: int, /) -> None: ...

    @property
    def rounds(self) -> int:
        """shuffles per temperature, with blocks (1 to 4096)"""

    @rounds.setter
    def rounds(self, value: int, /) -> None: ...

    @property
    def levels(self) -> int:
        """N_T: temperatures (1 to 1048576)"""

    @levels.setter
    def levels(self, value: int, /) -> None: ...

    @property
    def proposals_per_sample(self) -> int:
        """
        proposals of the whole search, times the samples that may move (1 to 1099511627776)
        """

    @proposals_per_sample.setter
    def proposals_per_sample(self, value: int, /) -> None: ...

    @property
    def most_proposals(self) -> int:
        """proposals of one search at most (1 to 1099511627776)"""

    @most_proposals.setter
    def most_proposals(self, value: int, /) -> None: ...

    @property
    def adaptive_temperatures(self) -> bool:
        """
        temperatures in units of what a random move costs; otherwise relative to the energy
        """

    @adaptive_temperatures.setter
    def adaptive_temperatures(self, value: bool, /) -> None: ...

    @property
    def hot(self) -> float:
        """T_0: first temperature (1e-300 to 1e+300)"""

    @hot.setter
    def hot(self, value: float, /) -> None: ...

    @property
    def cold(self) -> float:
        """T_N-1: last temperature (1e-300 to 1e+300)"""

    @cold.setter
    def cold(self, value: float, /) -> None: ...

    @property
    def paper_energy(self) -> bool:
        """minimise s0 + 1e-6 s1 + 1e-9 s2, as the paper does"""

    @paper_energy.setter
    def paper_energy(self, value: bool, /) -> None: ...

    @property
    def mean_share(self) -> float:
        """weight of the mean shard beside the slowest one in the energy (0 to 1)"""

    @mean_share.setter
    def mean_share(self, value: float, /) -> None: ...

    @property
    def guided_share(self) -> float:
        """p_guide: proposals from costly to cheap row-shards (0 to 1)"""

    @guided_share.setter
    def guided_share(self, value: float, /) -> None: ...

    @property
    def relocation_share(self) -> float:
        """rho: proposals that move one sample alone (0 to 1)"""

    @relocation_share.setter
    def relocation_share(self, value: float, /) -> None: ...

    @property
    def near_share(self) -> float:
        """of the other swaps: between samples of similar length (0 to 1)"""

    @near_share.setter
    def near_share(self, value: float, /) -> None: ...

    @property
    def near_width(self) -> float:
        """how far similar reaches, as a share of the samples (0 to 1)"""

    @near_width.setter
    def near_width(self, value: float, /) -> None: ...

    @property
    def tolerance(self) -> float:
        """gap to the bound at which the search ends early (0 to 1)"""

    @tolerance.setter
    def tolerance(self, value: float, /) -> None: ...

    @property
    def refinements(self) -> int:
        """
        joint: times that experts move to suit the rows, while it pays (1 to 4096)
        """

    @refinements.setter
    def refinements(self, value: int, /) -> None: ...

    @property
    def repack_share(self) -> float:
        """
        joint: proposals of a search after such moves, of those before (0 to 1000000)
        """

    @repack_share.setter
    def repack_share(self, value: float, /) -> None: ...

    @property
    def repack_hot(self) -> float:
        """
        joint: first temperature of such a search, of the one before (1e-300 to 1e+300)
        """

    @repack_hot.setter
    def repack_hot(self, value: float, /) -> None: ...

    @property
    def refine_steps(self) -> int:
        """
        joint: load vectors that one refinement looks at (1 to 1125899906842624)
        """

    @refine_steps.setter
    def refine_steps(self, value: int, /) -> None: ...

    @property
    def kicks(self) -> int:
        """
        joint with free moves: tries per layer to leave a local optimum (0 to 1048576)
        """

    @kicks.setter
    def kicks(self, value: int, /) -> None: ...

    def as_dict(self) -> dict[str, Any]:
        """Every option and its value."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class PlanParams:
    """How to plan, as opposed to what is allowed."""

    def __init__(self, *, placement: str = 'joint', sticky_eps: float = 0.01, moves: str = '', two_batches: bool = False, ranks_per_node: int = 0, expert_bytes: int = 0, model: str = '', weight_bytes: int = 2, optimizer_bytes: int = 12, optimizer_shards: int = 1, link_gbytes: float = 0, tflops: float = 0, row_order: str = 'pipeline', effort: str = 'default', deadline_ms: int = 0, threads: int = 0, seed: int = 0, search: SearchParams | None = None) -> None: ...

    @property
    def placement(self) -> str:
        """where experts go: 'keep', 'lpt', 'sticky', 'joint'"""

    @placement.setter
    def placement(self, value: str, /) -> None: ...

    @property
    def sticky_eps(self) -> float:
        """sticky, joint: stop moving once max/mean is within 1 + this (0 to 1)"""

    @sticky_eps.setter
    def sticky_eps(self, value: float, /) -> None: ...

    @property
    def moves(self) -> str:
        """
        free, a share of all experts (0.05), bytes per rank (200MB), price:X[,Y] per moved expert; all hold
        """

    @moves.setter
    def moves(self, value: str, /) -> None: ...

    @property
    def two_batches(self) -> bool:
        """joint: list the sticky moves and the row-aware ones apart"""

    @two_batches.setter
    def two_batches(self, value: bool, /) -> None: ...

    @property
    def ranks_per_node(self) -> int:
        """EP ranks of a node, for price:X,Y (0 = one node) (0 to 1048576)"""

    @ranks_per_node.setter
    def ranks_per_node(self, value: int, /) -> None: ...

    @property
    def expert_bytes(self) -> int:
        """
        state that moves with one expert, in bytes or like 66MB (0 = as the model says) (0 to 1125899906842624)
        """

    @expert_bytes.setter
    def expert_bytes(self, value: int, /) -> None: ...

    @property
    def model(self) -> str:
        """
        preset whose widths give the bytes of an expert (see generate --list-models; empty = as the window says)
        """

    @model.setter
    def model(self, value: str, /) -> None: ...

    @property
    def weight_bytes(self) -> int:
        """with --model: bytes of a weight (0 to 64)"""

    @weight_bytes.setter
    def weight_bytes(self, value: int, /) -> None: ...

    @property
    def optimizer_bytes(self) -> int:
        """with --model: master weight and moments, bytes per weight (0 to 64)"""

    @optimizer_bytes.setter
    def optimizer_bytes(self, value: int, /) -> None: ...

    @property
    def optimizer_shards(self) -> int:
        """with --model: replicas that share the optimizer state (1 to 1048576)"""

    @optimizer_shards.setter
    def optimizer_shards(self, value: int, /) -> None: ...

    @property
    def link_gbytes(self) -> float:
        """
        with --model and --tflops: GB/s that a rank sends, gives the price of a moved expert (0 = not known) (0 to 1000000000)
        """

    @link_gbytes.setter
    def link_gbytes(self, value: float, /) -> None: ...

    @property
    def tflops(self) -> float:
        """
        with --model and --link-gbytes: TFLOP/s reached in the experts (0 = not known) (0 to 1000000000)
        """

    @tflops.setter
    def tflops(self, value: float, /) -> None: ...

    @property
    def row_order(self) -> str:
        """
        light rows at both ends, or rows as they were built: 'pipeline', 'keep'
        """

    @row_order.setter
    def row_order(self, value: str, /) -> None: ...

    @property
    def effort(self) -> str:
        """budget of the search: 'paper', 'fast', 'default', 'quality'"""

    @effort.setter
    def effort(self, value: str, /) -> None: ...

    @property
    def deadline_ms(self) -> int:
        """end with the best plan so far (0 = no deadline) (0 to 1099511627776)"""

    @deadline_ms.setter
    def deadline_ms(self, value: int, /) -> None: ...

    @property
    def threads(self) -> int:
        """worker threads (0 = one per core) (0 to 4096)"""

    @threads.setter
    def threads(self, value: int, /) -> None: ...

    @property
    def seed(self) -> int:
        """names the random streams (0 to 9223372036854775807)"""

    @seed.setter
    def seed(self, value: int, /) -> None: ...

    @property
    def search(self) -> SearchParams | None:
        """instead of what the effort stands for; reading gives a copy"""

    @search.setter
    def search(self, value: SearchParams | None, /) -> None: ...

    def as_dict(self) -> dict[str, Any]:
        """Every option and its value."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class PlanControl:
    """
    Ends a plan from another thread: `plan(..., control=control)`. One control ends one plan.

    >>> control = PlanControl()
    >>> control.cancel()
    >>> control.cancelled
    True
    """

    def __init__(self) -> None: ...

    def cut(self) -> None:
        """
        End with the best plan as soon as there is a valid one; it says complete=False if that cost anything.
        """

    def cancel(self) -> None:
        """End without a plan: `plan` raises Cancelled."""

    @property
    def cancelled(self) -> bool: ...

class Progress:
    """
    How far a plan is: told when a phase begins (level 0) and when a temperature level ends.
    """

    @property
    def phase(self) -> str:
        """demand, place, loads, rows, seed, search, refine or check"""

    @property
    def level(self) -> int:
        """Temperatures passed"""

    @property
    def levels(self) -> int:
        """Temperatures of the whole search"""

    @property
    def temperature(self) -> float:
        """Relative to the energy"""

    @property
    def acceptance(self) -> float:
        """Accepted of the proposals of this level"""

    @property
    def best(self) -> float:
        """First component of the best score so far; inf before there is a layout"""

    @property
    def gap(self) -> float:
        """
        Of that to the bound with the placement there is; inf before there is a layout
        """

    @property
    def proposals(self) -> int:
        """Moves priced so far"""

    def __repr__(self) -> str: ...

class SearchReport:
    """What the search for a layout did."""

    @property
    def ending(self) -> str:
        """'budget', 'bound reached', 'nothing to move' or 'stopped'"""

    @property
    def seed(self) -> float:
        """First component of the score of the best layout to start from"""

    @property
    def seeds(self) -> int:
        """Different layouts to start from"""

    @property
    def failed_seeds(self) -> int:
        """Trials given up"""

    @property
    def levels(self) -> int:
        """Temperatures passed"""

    @property
    def proposals(self) -> int:
        """Moves priced"""

    @property
    def accepted(self) -> int:
        """Moves made"""

    def __repr__(self) -> str: ...

class PlacementReport:
    """
    What placing the experts did, and how to get there from where they were.
    """

    @property
    def layers(self) -> list[str]:
        """
        Why each layer ended: 'kept', 'balanced', 'hot expert', 'budget' or 'no swap helps'; empty when experts were kept or placed afresh
        """

    @property
    def sticky_swaps(self) -> int:
        """Swaps that balance the whole window"""

    @property
    def swaps_needed(self) -> int:
        """No fewer swaps do that"""

    @property
    def row_aware_swaps(self) -> int:
        """Swaps that suit the rows"""

    @property
    def cycles(self) -> list[tuple[int, list[int]]]:
        """
        (layer, slots): the expert in slots[k] goes to slots[k + 1], the last to the first
        """

    @property
    def bytes_in(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [P]: bytes into each rank; zeros when nobody said what an expert weighs
        """

    @property
    def bytes_out(self) -> numpy.typing.NDArray[numpy.int64]:
        """int64 [P]: bytes out of each rank"""

    @property
    def between_nodes(self) -> int:
        """Moved experts that leave their node"""

    @property
    def same_index(self) -> int:
        """Moved experts that keep their local slot"""

    @property
    def first_batch(self) -> Placement | None:
        """With two_batches: where experts are after the sticky moves"""

    def __repr__(self) -> str: ...

class Bounds:
    """What no layout can beat, and why. Arrays are [L], in routed tokens."""

    @property
    def fixed_placement(self) -> float:
        """Over every packing under the plan's placement"""

    @property
    def any_placement(self) -> float:
        """Over every packing and every placement"""

    @property
    def balanced(self) -> float:
        """The same if every rank could get the mean"""

    @property
    def placed_peak(self) -> numpy.typing.NDArray[numpy.int64]:
        """Load of the busiest rank over the window"""

    @property
    def rank_mean(self) -> numpy.typing.NDArray[numpy.int64]:
        """Mean load of a rank, rounded up"""

    @property
    def least_peak(self) -> numpy.typing.NDArray[numpy.int64]:
        """The least peak that some placement might reach"""

    @property
    def copies_needed(self) -> numpy.typing.NDArray[numpy.int64]:
        """Copies of hot experts without which no rank gets down to the mean"""

    @property
    def layers_that_need_replication(self) -> int:
        """Layers in which one expert is hotter than a rank's fair share"""

class Plan:
    """A placement, a layout, and what they are worth."""

    @staticmethod
    def load(path: str | os.PathLike) -> Plan:
        """Reads a plan file."""

    @staticmethod
    def from_json(text: str, source: str = 'plan') -> Plan:
        """From the text of a plan file; `source` stands in messages."""

    def save(self, path: str | os.PathLike) -> None:
        """Writes a plan file, whole or not at all."""

    def to_json(self) -> str:
        """The text of the plan file."""

    @property
    def hash(self) -> str:
        """
        «xxh3:» and 16 hex digits; equal for the same plan, whatever its timings and threads
        """

    def verify(self, window: Window) -> list[tuple[str, str]]:
        """Broken rules as (rule, sentence); an empty list is a sound plan."""

    def evaluate(self, window: Window) -> tuple[float, float, float]:
        """The score from scratch: (max_shard, total, worst_row)."""

    @property
    def placement(self) -> Placement: ...

    @property
    def physical_to_logical(self) -> numpy.typing.NDArray[numpy.int32]:
        """int32 [L, E]: the logical expert in each slot"""

    @property
    def layout(self) -> list[list[list[int]]]:
        """Samples of each slot of each row"""

    @property
    def rows(self) -> numpy.typing.NDArray[numpy.int32]:
        """int32 [samples and dummies]: the row of each"""

    @property
    def slots(self) -> numpy.typing.NDArray[numpy.int32]:
        """int32 [samples and dummies]: the slot of each"""

    @property
    def num_rows(self) -> int:
        """R"""

    @property
    def num_slots(self) -> int:
        """D"""

    @property
    def rows_lower_bound(self) -> int | None: ...

    @property
    def rows_certified(self) -> bool | None: ...

    @property
    def dummies(self) -> int:
        """One-token samples behind the last one"""

    @property
    def capacity(self) -> int: ...

    @property
    def complete(self) -> bool:
        """False: cut short by a deadline"""

    @property
    def shards(self) -> list[list[int]]: ...

    @property
    def ranks(self) -> int:
        """P, expert-parallel ranks"""

    @property
    def num_samples(self) -> int:
        """N, without dummies"""

    @property
    def constraints(self) -> Constraints: ...

    @property
    def params(self) -> PlanParams | None: ...

    @property
    def sync(self) -> str: ...

    @property
    def score(self) -> tuple[float, float, float] | None:
        """(max_shard, total, worst_row)"""

    @property
    def bound(self) -> float | None:
        """What no plan goes below in the first component of the score"""

    @property
    def gap(self) -> float | None:
        """score / bound - 1"""

    @property
    def metrics(self) -> dict[str, float]:
        """
        Everything that a dashboard shows, as `routepack/NAME`: log it as it is (docs/python.md)
        """

    @property
    def search(self) -> SearchReport | None:
        """What the search did; None when the file does not say"""

    @property
    def placing(self) -> PlacementReport | None:
        """How experts move and why; None when the file does not say"""

    @property
    def bounds(self) -> Bounds | None:
        """
        Layer by layer; None for a plan that was read: its file has `bound` alone
        """

    @property
    def row_scores(self) -> numpy.typing.NDArray[numpy.float64] | None:
        """
        float64 [R, G]: the objective of each row on each shard; None for a plan that was read
        """

    @property
    def rows_because(self) -> str | None:
        """
        The rule that binds the lower bound of the rows; None for a plan that was read
        """

    def rank_loads(self, window: Window) -> numpy.typing.NDArray[numpy.int64]:
        """
        int64 [R, G, L, P]: routed tokens of each rank in each row, on each shard, at each layer
        """

    @property
    def timings_ms(self) -> dict[str, float]: ...

    @property
    def moves(self) -> dict[str, float] | None:
        """
        experts and fraction that change rank, local that change slot inside one, bytes when known
        """

    def __getstate__(self) -> tuple[str, str]: ...

    def __setstate__(self, arg: tuple[str, str], /) -> None: ...

    def __repr__(self) -> str: ...

def plan(window: Window, topology: Topology, *, capacity: int, cost: CostModel, constraints: Constraints | None = None, params: PlanParams | None = None, current: Placement | Plan | None = None, sync: str = 'step', progress: Callable[[Progress], object] | None = None, placed: Callable[[Placement], object] | None = None, control: PlanControl | None = None, team: routepack.team.communicator.Communicator | None = None, on_lost: str = 'raise') -> Plan:
    """
    Plans one optimizer step: where every expert lives, and in which row and slot every sample trains.

    Runs without the GIL; Ctrl-C stops it, other threads go on, and several plans may run at once.

    :param capacity: tokens that one cell holds
    :param current: where experts are now; None: expert e in slot e
    :param progress: told when a phase begins and a temperature level ends. Returning False ends the search
        with the best plan there is by then; an exception ends it without one and comes out of this call
    :param placed: told where experts go, before the search for a layout; final unless the placement is joint,
        and then with params.two_batches final for the first batch of moves
    :param control: ends the plan from another thread
    :param team: processes that plan this together, each with the same arguments: a `routepack.team.Communicator`.
        All get the plan of one process alone. A cut in one of them ends the search of all, a cancel all planning
    :param on_lost: when a rank of the team is lost: 'raise' PeerLost, or plan 'alone', with a warning, in what time
        is left of the deadline; without a deadline that is the team's plan
    :raises InfeasibleError: when no layout exists; the message says why and what would help
    :raises Cancelled: when the control said so, here or in another rank of the team
    :raises PeerLost: naming a rank of the team that is gone, silent, or has left with an exception of its own

    >>> import numpy as np
    >>> counts = np.array([[[3, 1]], [[0, 4]], [[2, 2]], [[1, 3]]], dtype=np.uint16)
    >>> window = Window.from_arrays(lengths=np.array([4, 4, 4, 4], dtype=np.int32), counts=counts, top_k=1)
    >>> cost = CostModel([Stage("full", alpha=1.0, beta=2.0)])
    >>> made = plan(window, Topology(dp=2, ep=2), capacity=8, cost=cost)
    >>> made.num_rows, made.verify(window)
    (1, [])
    """

def plan_many(windows: Sequence[Window], topology: Topology, *, capacity: int, cost: CostModel, constraints: Constraints | None = None, params: PlanParams | None = None, current: Placement | Plan | None = None, sync: str = 'step', progress: Callable[[Progress], object] | None = None, placed: Callable[[Placement], object] | None = None, control: PlanControl | None = None, team: routepack.team.communicator.Communicator | None = None, on_lost: str = 'raise') -> list[Plan]:
    """
    Plans several optimizer steps of one rollout batch that share a placement: experts move once, and each
    window gets a layout of its own. Options as those of `plan`. A cut takes effect once every window has a
    layout.

    >>> import numpy as np
    >>> counts = np.array([[[3, 1]], [[0, 4]]], dtype=np.uint16)
    >>> window = Window.from_arrays(lengths=np.array([4, 4], dtype=np.int32), counts=counts, top_k=1)
    >>> cost = CostModel([Stage("full", alpha=1.0, beta=2.0)])
    >>> first, second = plan_many([window, window], Topology(dp=2, ep=2), capacity=8, cost=cost)
    >>> first.placement == second.placement
    True
    """

def load_window(path: str | os.PathLike, team: routepack.team.communicator.Communicator) -> Window:
    """
    The window at path, by all members of a team together. Of a manifest each reads some parts and gets all but the
    counts of the others; another file is read by all. Only rank 0 needs the manifest, and a part only somebody.

    :raises InvalidInput: the same in all members, also for a part that nobody finds
    """

def share_window(window: Window, team: routepack.team.communicator.Communicator) -> Window:
    """
    The windows of all members one after another, by rank. Each has its own counts; all know everything else.

    :raises InvalidInput: the same in all members, for windows that do not go together
    """

class ExpertParameter:
    """One trainable tensor of an expert."""

    def __init__(self, name: str, shape: Sequence[int]) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> list[int]: ...

    @property
    def elements(self) -> int: ...

class ExpertTensor:
    """One tensor of expert state, contiguous per expert."""

    def __init__(self, name: str, role: str, type: str, spread: str, elements: int, parameter: int | None = None) -> None:
        """
        `elements` of one expert over all lanes; `parameter` is an index, needed when sharded.
        """

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def spread(self) -> str: ...

    @property
    def elements(self) -> int: ...

    @property
    def parameter(self) -> int | None: ...

    @property
    def bytes(self) -> int: ...

class MegatronBuffers:
    """How Megatron-Core lays expert parameters into flat buffers."""

    def __init__(self, *, registration: str = 'grouped', bucket_elements: int | None = None, high_bus_bandwidth: bool = False, start_alignment: int = 64, chunks: Sequence[Sequence[int]] = []) -> None: ...

class TrainerFacts:
    """Facts about a trainer that forbid moving its experts."""

    def __init__(self, *, fully_sharded: bool = False, weight_remat: int = 1, experts_differ: bool = False, replay_in_flight: bool = False, offloaded: bool = False, params_gather_pending: bool = False) -> None: ...

    def refuse_unmovable(self) -> None:
        """Raises InvalidInput naming the fact and what to do, or returns."""

class GridLayout:
    """Where every byte of expert state lies on an EP × EDP grid."""

    @staticmethod
    def megatron(*, ep: int, edp: int, layers: int, slots: int, parameters: Sequence[ExpertParameter], tensors: Sequence[ExpertTensor], buffers: MegatronBuffers) -> GridLayout:
        """Lane ranges by Megatron's rules."""

    @staticmethod
    def explicit_ranges(*, ep: int, edp: int, layers: int, slots: int, parameters: Sequence[ExpertParameter], tensors: Sequence[ExpertTensor], ranges: Sequence[Sequence[tuple[int, int, int]]]) -> GridLayout:
        """
        Lane ranges as the trainer has them: for [layer, slot, parameter] flattened, a list of
        (lane, begin, end) in elements.
        """

    @staticmethod
    def adam(*, ep: int, edp: int, layers: int, slots: int, hidden: int, width: int) -> GridLayout:
        """
        bf16 weights, fp32 master weights and two moments of a gated FFN in one Megatron buffer.

        >>> layout = GridLayout.adam(ep=4, edp=2, layers=1, slots=2, hidden=16, width=12)
        >>> layout.lanes_of(0, 1, 0)
        [(0, 0, 192), (1, 192, 384)]
        """

    @staticmethod
    def load(path: str | os.PathLike) -> GridLayout:
        """Reads a layout file."""

    def save(self, path: str | os.PathLike) -> None: ...

    def to_json(self) -> str: ...

    @property
    def ep(self) -> int: ...

    @property
    def edp(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def slots(self) -> int:
        """n, local slots per rank"""

    @property
    def experts(self) -> int: ...

    @property
    def canary(self) -> int:
        """Index of the canary among the tensors"""

    @property
    def parameters(self) -> list[ExpertParameter]: ...

    @property
    def tensors(self) -> list[ExpertTensor]:
        """With the canary, which is last"""

    def lanes_of(self, layer: int, local_slot: int, parameter: int) -> list[tuple[int, int, int]]:
        """Who owns what of a parameter: (lane, begin, end) in elements."""

    def bytes_on(self, layer: int, local_slot: int, tensor: int, lane: int) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def __eq__(self, arg: object, /) -> bool: ...

class LayerSchedule:
    """What one rank does in one layer, in order."""

    @property
    def layer(self) -> int: ...

    @property
    def copies(self) -> numpy.typing.NDArray[Any]:
        """Structured array; kind 0 is local, 1 send, 2 receive"""

    @property
    def staging_bytes(self) -> int: ...

    @property
    def transit_bytes(self) -> int: ...

def schedule_moves(layout: GridLayout, before: Placement, after: Placement, rank: int, route: str = 'two-hop') -> list[LayerSchedule]:
    """
    One rank's copies from one placement to another, layer by layer. All ranks compute theirs alone.

    >>> layout = GridLayout.adam(ep=2, edp=2, layers=1, slots=1, hidden=16, width=12)
    >>> before = Placement.identity(layers=1, experts=2, ranks=2)
    >>> after = Placement.from_maps(ranks=2, physical_to_logical=np.array([[1, 0]], dtype=np.int32))
    >>> (layer,) = schedule_moves(layout, before, after, rank=0)
    >>> layer.copies[["kind", "peer", "tensor", "bytes"]][0].item()
    (1, 1, 0, 768)
    """

class LinkTraffic:
    """Bytes and messages by the links that they use."""

    @property
    def local(self) -> int: ...

    @property
    def across_ep(self) -> int: ...

    @property
    def within_edp(self) -> int: ...

    @property
    def across_both(self) -> int: ...

    @property
    def between_nodes(self) -> int: ...

    @property
    def overhead(self) -> int: ...

    @property
    def messages(self) -> int: ...

class RankLoad:
    """What one rank sends, receives and stages."""

    @property
    def out(self) -> LinkTraffic: ...

    @property
    def staging_peak(self) -> int: ...

    @property
    def staging_total(self) -> int: ...

class TrafficForecast:
    """A whole move, known before anything runs."""

    @property
    def ranks(self) -> list[RankLoad]: ...

    @property
    def total(self) -> LinkTraffic: ...

    @property
    def moved_experts(self) -> int: ...

    @property
    def local_experts(self) -> int: ...

    @property
    def layers(self) -> int: ...

def forecast_traffic(layout: GridLayout, before: Placement, after: Placement, route: str = 'two-hop', ranks_per_node: int = 0) -> TrafficForecast:
    """
    Bytes and messages of a whole move by links, before anything runs.

    >>> layout = GridLayout.adam(ep=2, edp=2, layers=1, slots=1, hidden=16, width=12)
    >>> before = Placement.identity(layers=1, experts=2, ranks=2)
    >>> after = Placement.from_maps(ranks=2, physical_to_logical=np.array([[1, 0]], dtype=np.int32))
    >>> traffic = forecast_traffic(layout, before, after)
    >>> traffic.moved_experts, traffic.total.across_ep, traffic.total.within_edp
    (2, 18432, 0)
    """

def piece_checksum(*, layer: int, expert: int, tensor: int, from_slot: int, to_slot: int, begin: int, bytes: Any) -> int:
    """XXH3-64 of uint8 host memory, seeded by which piece it is."""

class TransferFailure:
    """Where the first failure was; -1: does not apply."""

    def __init__(self, what: str, rank: int = -1, layer: int = -1, expert: int = -1, tensor: int = -1) -> None: ...

    @property
    def phase(self) -> str: ...

    @property
    def rank(self) -> int: ...

    @property
    def layer(self) -> int: ...

    @property
    def expert(self) -> int: ...

    @property
    def tensor(self) -> int: ...

    @property
    def what(self) -> str: ...

    def __repr__(self) -> str: ...

class TransferOutcome:
    """How a move ended on this rank."""

    @property
    def complete(self) -> bool:
        """Every layer is new on every rank, and every rank said so"""

    @property
    def layers(self) -> list[str]:
        """'old', 'new' or 'torn' per layer"""

    @property
    def failure(self) -> TransferFailure | None: ...

    @property
    def silent(self) -> list[int]:
        """Ranks that did not answer"""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...

    @property
    def bytes_local(self) -> int: ...

    @property
    def staging_bytes(self) -> int: ...

    @property
    def seconds(self) -> dict[str, float]:
        """By phase"""

class TransferEngine:
    """Moves expert state exactly, or not at all. One per rank."""

    def __init__(self, postbox: Any, layout: GridLayout, mover: Any, placement: Placement, epoch: int, *, route: str = 'two-hop', atomic: str = 'layer', staging_limit: int | None = None, timeout_ms: int = 60000, read_back: bool = False) -> None:
        """
        `postbox` and `mover` have the methods of routepack.transfer.Postbox and TorchMover. `timeout_ms` must be
        longer than the longest layer takes (with atomic='step': the whole move).
        """

    def move(self, to: Placement, epoch: int) -> TransferOutcome:
        """
        Collective: every rank calls it with the same arguments at a step boundary.
        """

    @property
    def placement(self) -> Placement:
        """What the slots hold now"""

    @property
    def epoch(self) -> int: ...

    @property
    def phase(self) -> str: ...

    @property
    def layers(self) -> list[str]: ...

    @property
    def failure(self) -> TransferFailure | None: ...
