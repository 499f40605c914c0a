# SPDX-License-Identifier: Apache-2.0
"""NeMo RL: sequence packing answers with RoutePack's layout.

    from routepack.adapters import Settings, nemo_rl
    nemo_rl.install(Settings(cost="cost.toml"))    # in the driver, before the policy is made

or, without touching a file, `python -m routepack.adapters.nemo_rl examples/run_grpo.py …` with
ROUTEPACK_COST=cost.toml.

NeMo RL cuts a batch on its driver, once for log-probs and once for training, always through
`BatchedDataDict.shard_by_batch_size`. The plan is made at the first of these for the chunks that training will take
(`train_global_batch_size` samples), and serves the others where their cap allows it. With the data plane, routes are
counted where rollouts end (`nemo_rl_rollouts`). With mode 'placement' or 'both' the policy's Megatron workers move
experts at that moment (`nemo_rl_moves`, `nemo_rl_experts`). With others they keep them where a checkpoint has them.
Source: nemo_rl/distributed/batched_data_dict.py, nemo_rl/models/policy/lm_policy.py and tq_policy.py beside it,
nemo_rl/data_plane/preshard.py at commit 7ea279ab.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import importlib
import logging
import sys
import weakref
import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack import exporters
from routepack._arrays import host_array
from routepack._core import Constraints, Placement, Topology
from routepack._errors import InvalidInput
from routepack.adapters import nemo_rl_moves as moves
from routepack.adapters import nemo_rl_rollouts as rollouts
from routepack.adapters._experts import experts_of
from routepack.adapters._hooks import Replaced, module_of, need_function, or_nothing, run_script
from routepack.adapters._reasons import FallBack, Reason
from routepack.adapters._routes import COUNTS, Counted, RouteCounts, unpack_counts
from routepack.adapters._session import PlannedStep, Session, Step, StepWindow
from routepack.adapters._settings import Settings
from routepack.adapters._topology import topology_of_sizes
from routepack.adapters._unsafe import look_up

_LOG = logging.getLogger("routepack")
_ROUTES = rollouts.ROUTES


@dataclass(frozen=True, eq=False)
class _Pass:
    """Which of a policy's passes is being cut."""

    policy: Any
    settings: Settings
    training: bool
    meta: Any = None  #: of the data plane: names of samples whose routes are elsewhere


_PASS: contextvars.ContextVar[_Pass | None] = contextvars.ContextVar("routepack_nemo_rl_pass", default=None)
# not in policies, which get pickled
_SESSIONS: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()
_CHOSEN: weakref.WeakKeyDictionary[Any, Settings] = weakref.WeakKeyDictionary()  #: what a session was made for
#: of policies made since `install`: workers that know where experts are; None: it has no optimizer
_MOVERS: weakref.WeakKeyDictionary[Any, moves.Movers | None] = weakref.WeakKeyDictionary()
_FAILED: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  #: steps that ended without a plan like that
_REPLACED = Replaced()


def install(
    settings: Settings | None = None,
    *,
    policy_module: Any = None,
    data_module: Any = None,
    registry_module: Any = None,
    groups_module: Any = None,
) -> None:
    """Makes NeMo RL's policies plan. Call it in the driver, before policies are made; twice takes the new settings.

    :param settings: None: from the environment (ROUTEPACK_COST and so on)
    :param policy_module: instead of nemo_rl.models.policy.lm_policy
    :param data_module: instead of nemo_rl.distributed.batched_data_dict
    :param registry_module: instead of nemo_rl.distributed.ray_actor_environment_registry
    :param groups_module: instead of nemo_rl.distributed.worker_groups
    :raises Error: when this NeMo RL has no such hooks, or a setting is wrong
    """
    chosen = (settings or Settings.from_environment()).with_cost_text()
    chosen.check()
    uninstall()
    with or_nothing(uninstall, switched_off=not chosen.enabled):
        _install(chosen, policy_module, data_module, registry_module, groups_module)


def _install(
    chosen: Settings, policy_module: Any, data_module: Any, registry_module: Any, groups_module: Any
) -> None:
    policies = policy_module or module_of("nemo_rl", "nemo_rl.models.policy.lm_policy")
    data = data_module or module_of("nemo_rl", "nemo_rl.distributed.batched_data_dict")
    plane = _data_plane(policy_module)
    policy, batch = policies.Policy, data.BatchedDataDict
    need_function("nemo_rl", policy, "_shard_for_train", ["self", "data", "batch_size"], calls="shard_by_batch_size")
    need_function("nemo_rl", policy, "_shard_for_logprob", ["self", "data"], calls="shard_by_batch_size")
    need_function("nemo_rl", batch, "shard_by_batch_size", ["self", "shards", "batch_size", "sequence_packing_args"])
    need_function("nemo_rl", batch, "select_indices", ["self", "indices"])
    if chosen.mode == "packing" or chosen.on_placement is None:
        _wrap_start(policy, chosen, registry_module, groups_module)
    _wrap(policy, "_shard_for_train", lambda f: _marked(f, chosen, training=True))
    _wrap(policy, "_shard_for_logprob", lambda f: _marked(f, chosen, training=False))
    _wrap(batch, "shard_by_batch_size", lambda f: _sharding(f, data.SlicedDataDict))
    if "train" in vars(policy):
        _wrap(policy, "train", _logging)
    if plane is not None:
        _wrap(plane.TQPolicy, "_logprob_dispatch", lambda f: _marked(f, chosen, training=False, meta=True))
        _wrap(plane.TQPolicy, "train_from_meta", lambda f: _logging(_marked(f, chosen, training=True, meta=True)))
        if chosen.enabled:
            _count_in_rollouts(chosen)


def _count_in_rollouts(chosen: Settings) -> None:
    try:
        rollouts.install(_REPLACED, module_of("nemo_rl", "nemo_rl.experience.sync_rollout_actor"), chosen.experts)
    except Exception as error:  # also what comes of importing that module; nothing depends on it
        _LOG.info("routepack: routes in the data plane are counted on the driver: %s", error)


def _data_plane(policy_module: Any) -> Any:
    """The module whose policy cuts names of samples instead of samples. It may need packages that are not there."""
    if policy_module is None:
        with contextlib.suppress(ImportError):
            importlib.import_module("nemo_rl.models.policy.tq_policy")
    plane = sys.modules.get("nemo_rl.models.policy.tq_policy")
    if plane is not None:
        for name in ("_logprob_dispatch", "train_from_meta"):
            need_function("nemo_rl", plane.TQPolicy, name, ["self", "meta"])
    return plane


def _wrap_start(policy: Any, chosen: Settings, registry_module: Any, groups_module: Any) -> None:
    """Which workers a policy gets, by the settings and the checkpoint that it starts from."""
    try:
        registry = registry_module or module_of("nemo_rl", "nemo_rl.distributed.ray_actor_environment_registry")
        groups = groups_module or module_of("nemo_rl", "nemo_rl.distributed.worker_groups")
        moves.need_hooks(policy, registry, groups)
        _wrap(policy, "__init__", lambda f: moves.choosing(f, registry, groups, _MOVERS, chosen))
    except InvalidInput as error:
        if chosen.moves_itself:
            raise
        why = str(error)
        if "__init__" in vars(policy):
            _wrap(policy, "__init__", lambda f: moves.refusing(f, why))


def uninstall() -> None:
    """Takes the hooks out again. Workers of policies that are there stay as they are."""
    _REPLACED.put_back()


def _wrap(owner: Any, name: str, how: Callable[[Any], Any]) -> None:
    original = vars(owner)[name]
    _REPLACED.put(owner, name, functools.wraps(original)(how(original)))


def _marked(original: Any, settings: Settings, *, training: bool, meta: bool = False) -> Any:
    def method(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        token = _PASS.set(_Pass(self, settings, training, data if meta else None))
        try:
            return original(self, data, *args, **kwargs)
        finally:
            _PASS.reset(token)

    return method


def _logging(original: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        results = original(self, *args, **kwargs)
        session = _SESSIONS.get(self)
        if session is not None and isinstance(results, dict) and isinstance(results.get("all_mb_metrics"), dict):
            results["all_mb_metrics"].update({name: [value] for name, value in session.metrics.items()})
        return results

    return method


def _sharding(original: Any, sliced: Any) -> Any:
    def shard_by_batch_size(self: Any, shards: int, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        made = None
        now = _PASS.get()
        packing = kwargs.get("sequence_packing_args")
        if now is not None and not args:
            # what this call does inside is not another pass
            token = _PASS.set(None)
            try:
                made = _planned(self, now, shards, batch_size, packing, sliced)
            except moves.Torn:
                raise
            except Exception as error:  # in what NeMo RL gave, before there was a plan
                _failed(now, error)
            finally:
                _PASS.reset(token)
        return original(self, shards, batch_size, *args, **kwargs) if made is None else made

    return shard_by_batch_size


def _failed(now: _Pass, error: Exception) -> None:
    """The session says it and counts it, once a step: the pass of training ends one."""
    try:
        number = _FAILED.get(now.policy, 0)
        _FAILED[now.policy] = number + now.training
        session_of(now.policy, now.settings).failed(error, key=("failed", number))
    except Exception:
        _LOG.warning("routepack: NeMo RL's own packing is used: %s: %s", type(error).__name__, error)


def _planned(data: Any, now: _Pass, shards: int, batch_size: int | None, packing: Any, sliced: Any) -> Any:
    if now.settings.moves_itself and _MOVERS.get(now.policy, now) is None:
        return None  # a teacher, or a policy for generation: its experts are at home, and stay there
    session, movers = session_of(now.policy, now.settings), _MOVERS.get(now.policy)
    if movers is not None and movers.torn is not None:
        raise movers.torn
    if packing is None:
        return session.run(_unsupported, lambda planned: None, key="unsupported")
    lengths = _lengths(data[packing["input_lengths_key"]])
    multiple = int(packing["sequence_length_pad_multiple"])
    train_cap = int(now.policy.cfg["sequence_packing"]["train_mb_tokens"])
    chunk = int(batch_size or now.policy.cfg["train_global_batch_size"])
    if not now.training:
        chunk = int(now.policy.cfg["train_global_batch_size"])
        if int(packing["max_tokens_per_microbatch"]) < train_cap or lengths.size % chunk:
            return None  # this pass has limits of its own, and per-sample results that do not depend on its cells
    key = _key(data, packing, now, lengths, chunk)
    made = session.run(
        lambda: step_of(
            now.policy.cfg,
            shards,
            lengths,
            multiple,
            chunk,
            *_counted(data, now, lengths, () if movers is None else movers.here.layers),
        ),
        lambda planned: shards_of(
            planned, data, lengths, multiple, chunk, train_cap, sliced, one_chunk=not now.training
        ),
        key=key,
    )
    _settle(session, movers)
    return made


def _move(policy: Any, placement: Placement, epoch: int) -> None:
    """What a session calls when experts are to move."""
    movers = _MOVERS.get(policy)
    if movers is None:
        raise InvalidInput("the policy was made before nemo_rl.install moves experts, wanted workers that do")
    movers.move(placement, epoch)


def _settle(session: Session, movers: moves.Movers | None) -> None:
    """After a plan: a move that left experts in between ends the job; one that failed whole leaves the layout in use,
    in this pass and those that come, with experts where they are."""
    if movers is None:
        return
    if movers.torn is not None:
        raise movers.torn
    if movers.failed:
        session.not_moved(movers.failed)
        session.resume(movers.here.maps, max(session.epoch, movers.here.epoch), keep_plan=True)
        movers.failed = ""


def _unsupported() -> Step:
    raise FallBack(
        Reason.UNSUPPORTED, "batches without sequence packing: plans need policy.sequence_packing.enabled=true"
    )


def session_of(policy: Any, settings: Settings | None = None) -> Session:
    """The session of a policy, made at its first batch; its `metrics` are those of the last step."""
    session = _SESSIONS.get(policy)
    if session is None or (settings is not None and _CHOSEN[policy] != settings):
        if session is not None:
            session.close()
        chosen = used = settings or Settings.from_environment()
        if chosen.moves_itself:
            mine = weakref.ref(policy)
            used = dataclasses.replace(
                chosen, current="", on_placement=lambda placement, epoch: _move(mine(), placement, epoch)
            )
        session = Session.or_off(used, framework="nemo_rl", config=policy.cfg)
        movers = _MOVERS.get(policy)
        if movers is not None:
            session.resume(movers.here.maps, movers.here.epoch)
        _SESSIONS[policy], _CHOSEN[policy] = session, chosen
    return session


def step_of(
    cfg: Any,
    shards: int,
    lengths: npt.NDArray[np.int32],
    multiple: int,
    chunk: int,
    counted: Sequence[Counted | None],
    top_k: int,
) -> Step:
    """Windows of the chunks that training takes, and the limits of its microbatches.

    :param counted: routes of each sample
    :raises FallBack: when samples do not fill chunks
    """
    if lengths.size % chunk:
        raise FallBack(Reason.UNSUPPORTED, f"found {lengths.size} samples, wanted a multiple of {chunk}")
    return Step(
        windows=[
            StepWindow(lengths[begin : begin + chunk], counted[begin : begin + chunk])
            for begin in range(0, lengths.size, chunk)
        ],
        top_k=top_k,
        topology=topology_of(cfg, shards),
        capacity=int(cfg["sequence_packing"]["train_mb_tokens"]),
        constraints=Constraints(sample_multiple=multiple),
    )


def shards_of(
    planned: list[PlannedStep],
    data: Any,
    lengths: npt.NDArray[np.int32],
    multiple: int,
    chunk: int,
    capacity: int,
    sliced: Any,
    *,
    one_chunk: bool,
) -> tuple[list[Any], list[int]]:
    """The plan as `shard_by_batch_size` would return it: shards, and which sample each of their rows is.

    :param sliced: the class of a shard
    :param one_chunk: for log-probs, where all chunks are one
    """
    made = exporters.nemo_rl(
        [step.plan for step in planned],
        lengths=[lengths[begin : begin + chunk] for begin in range(0, lengths.size, chunk)],
        make_sequence_length_divisible_by=multiple,
        max_tokens_per_microbatch=capacity,
    )
    shards = []
    for some in made:
        shard = sliced.from_batches([data.select_indices(some.indices)])
        shard.micro_batch_indices = some.micro_batch_indices
        shard.micro_batch_lengths = some.micro_batch_lengths
        shard.elem_counts_per_gb = some.elem_counts_per_gb
        if one_chunk:
            begins = np.cumsum([0, *some.elem_counts_per_gb[:-1]]).tolist()
            shard.micro_batch_indices = [
                [
                    [begin + span[0], begin + span[1]]
                    for begin, spans in zip(begins, some.micro_batch_indices, strict=True)
                    for span in spans
                ]
            ]
            shard.micro_batch_lengths = [[load for loads in some.micro_batch_lengths for load in loads]]
            shard.elem_counts_per_gb = [sum(some.elem_counts_per_gb)]
        shards.append(shard)
    return shards, [i for some in made for i in some.indices]


def topology_of(cfg: Any, dp: int) -> Topology:
    """Parallel sizes of Megatron, or of DTensor."""
    megatron = look_up(cfg, "megatron_cfg") or {}
    if megatron.get("enabled"):
        return topology_of_sizes(
            dp=dp,
            ep=_size(megatron, "expert_model_parallel_size"),
            tp=_size(megatron, "tensor_model_parallel_size"),
            cp=_size(megatron, "context_parallel_size"),
            etp=_size(megatron, "expert_tensor_parallel_size"),
            pp=_size(megatron, "pipeline_model_parallel_size"),
        )
    dtensor = look_up(cfg, "dtensor_cfg") or {}
    return topology_of_sizes(
        dp=dp,
        ep=_size(dtensor, "expert_parallel_size"),
        tp=_size(dtensor, "tensor_parallel_size"),
        cp=_size(dtensor, "context_parallel_size"),
    )


def _counted(
    data: Any, now: _Pass, lengths: npt.NDArray[np.int32], layers: Sequence[int]
) -> tuple[Sequence[Counted | None], int]:
    """What the routes of each sample count, and k.

    :param layers: numbers of those with experts, counted from 1, where routes of all layers may come; (): all have some
    :raises FallBack: when routes are missing
    """
    experts = now.settings.experts or experts_of(str(now.policy.cfg["model_name"]))
    before = _counted_before(data, now, lengths, experts)
    if before is not None:
        counted, top_k = before
        kept = _kept(layers, counted[0].counts.shape[0])
        return counted if kept is None else [Counted(c.counts[kept], c.recorded[kept]) for c in counted], top_k
    routes = _routes(data, now)
    if routes is None:
        raise FallBack(Reason.NO_ROUTES, "the batch has no routed_experts; is policy.router_replay.enabled on?")
    if routes.ndim != 4 or routes.shape[0] != lengths.size or routes.shape[1] < lengths.max(initial=0):
        raise FallBack(
            Reason.BAD_INPUT,
            f"routed_experts: found shape {list(routes.shape)}, "
            f"wanted [{lengths.size}, {int(lengths.max(initial=0))} or more, layers, k]",
        )
    tokens = lengths.tolist()
    cache = RouteCounts(experts=experts, layers=_kept(layers, routes.shape[2]))
    return cache.of([routes[i, : tokens[i]] for i in range(len(tokens))], lengths=tokens), int(routes.shape[3])


def _kept(layers: Sequence[int], found: int) -> list[int] | None:
    """Places of the layers with experts among those that routes have; None: all of them."""
    if not layers or len(layers) >= found:
        return None
    if max(layers) > found:
        text = f"routed_experts: found {found} layers, wanted {len(layers)} or all, {max(layers)} or more"
        raise FallBack(Reason.BAD_INPUT, text)
    return [number - 1 for number in layers]


def _counted_before(
    data: Any, now: _Pass, lengths: npt.NDArray[np.int32], experts: int
) -> tuple[list[Counted], int] | None:
    """What was counted where rollouts ended; None unless it is in the data plane and fits all samples."""
    if now.meta is None or _ROUTES in data or not getattr(now.policy, "_router_replay_enabled", False):
        return None
    try:
        # Not by `read_from_dataplane`, which takes the second dimension of whatever it reads for tokens, and pads it.
        stored = now.policy.dp_client.get_samples(
            sample_ids=now.meta.sample_ids, partition_id=now.meta.partition_id, select_fields=[COUNTS]
        )
        packed = host_array(stored[COUNTS], COUNTS)
        return unpack_counts(packed, experts=experts, rows=lengths.tolist())
    except Exception as error:  # an actor without RoutePack, other settings there: the routes say it all
        _LOG.debug("routepack: routes are counted on the driver: %s", error)
        return None


def _routes(data: Any, now: _Pass) -> Any:
    if now.meta is not None and _ROUTES not in data:
        if not getattr(now.policy, "_router_replay_enabled", False):
            return None
        return now.policy.read_from_dataplane(now.meta, select_fields=[_ROUTES])[_ROUTES]
    return data[_ROUTES] if _ROUTES in data else None


def _lengths(values: Any) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(host_array(values, "input_lengths"), dtype=np.int32)


def _key(data: Any, packing: Any, now: _Pass, lengths: npt.NDArray[np.int32], chunk: int) -> Hashable:
    """Names a window by what is in it: log-probs and training get batches of their own over the same samples.

    Two windows with one name would share a layout, which is valid for both, as their lengths are the same.
    """
    if now.meta is not None:
        content: Hashable = tuple(now.meta.sample_ids)
    else:
        sums = host_array(data[packing["input_key"]].sum(1), "input_ids")
        content = zlib.crc32(np.ascontiguousarray(sums).tobytes())
    return (lengths.size, chunk, zlib.crc32(lengths.tobytes()), content)


def _size(values: Any, name: str) -> int:
    return int(values.get(name) or 1)


def main() -> None:
    """`python -m routepack.adapters.nemo_rl script.py …`"""
    from routepack.adapters import nemo_rl

    run_script(
        nemo_rl.install, "usage: ROUTEPACK_COST=cost.toml python -m routepack.adapters.nemo_rl examples/run_grpo.py …"
    )


if __name__ == "__main__":
    main()
