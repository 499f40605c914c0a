# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's own rollout actor on Ray, its own data plane on TransferQueue, and its own policy that plans.

Usage: FOLDER [JSON of a batch]. Run as a process of its own, with the checkout and the folder's sitecustomize on
PYTHONPATH. Writes what was heard to result.json, and what the queue had to an .npz of each actor. What generates,
decodes and rewards is a stand-in.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
import types
from typing import Any

import numpy as np
import torch

from tests_adapters import contracts  # type: ignore[import-not-found]
from tests_adapters.batches import COST, PATIENT, Batch  # type: ignore[import-not-found]
from tests_adapters.nemo_jobs import config  # type: ignore[import-not-found]

COUNTS, ROUTES = "routepack_counts", "routed_experts"
RANKS, GROUP = 4, 4
#: hides RoutePack from the processes of an actor
HIDE = "TESTS_WITHOUT_ROUTEPACK"


class Tokenizer:
    """Numbers in place of words."""

    pad_token_id = 0

    def batch_decode(self, ids: Any, **_: Any) -> list[str]:
        return [" ".join(str(int(i)) for i in some) for some in ids]

    def __call__(self, text: str, **_: Any) -> Any:
        return types.SimpleNamespace(input_ids=[torch.tensor([float(word) for word in text.split()])])


class Generation:
    """Answers of a batch in two turns, with the routes of all tokens so far but the last, which was never routed."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def snapshot_step_metrics(self) -> None: ...

    def clear_logger_metrics(self) -> None: ...

    def finish_generation(self) -> None: ...

    def get_logger_metrics(self) -> dict[str, float]:
        return {"throughput": 1.0}

    def generate(self, data: Any, greedy: bool) -> Any:
        from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # type: ignore[import-not-found]

        tokens, routes = self.batch.tokens(), self.batch.routes()
        before = data["input_lengths"].tolist()
        samples = [int(first) for first in data["input_ids"][:, 0]]
        asked = [prompt_of(self.batch, i) == n for i, n in zip(samples, before, strict=True)]
        # One sample in two is asked again: its second answer is one token more.
        ends = [len(tokens[i]) - 2 * (i % 2) if new else len(tokens[i]) for i, new in zip(samples, asked, strict=True)]
        ends = [max(end, n + 1) for end, n in zip(ends, before, strict=True)]
        ids = torch.zeros(len(samples), max(ends), dtype=torch.int64)
        kind = torch.int8 if self.batch.experts <= 128 else torch.int16
        captured = torch.full((*ids.shape, self.batch.layers, self.batch.top_k), -1, dtype=kind)
        for row, (i, end) in enumerate(zip(samples, ends, strict=True)):
            ids[row, : before[row]] = data["input_ids"][row, : before[row]]
            ids[row, before[row] : end] = torch.tensor((tokens[i] + [1])[before[row] : end])
            captured[row, : end - 1] = torch.from_numpy(routes[i][: end - 1]).to(kind)
        return BatchedDataDict(
            {
                "output_ids": ids,
                "generation_lengths": torch.tensor(ends) - data["input_lengths"],
                "unpadded_sequence_lengths": torch.tensor(ends),
                "logprobs": torch.full(ids.shape, -1.0),
                "routed_experts": captured,
                "truncated": torch.zeros(len(samples), dtype=torch.bool),
            }
        )


class Environment:
    """Rewards, and a second question for one sample in two. `step.remote`, as of an actor."""

    step: Any = None

    def __init__(self) -> None:
        self.step = types.SimpleNamespace(remote=self.answer)

    def answer(self, messages: Any, info: Any) -> Any:
        import ray

        more = [len(log) == 2 and sample % 2 == 1 for log, sample in zip(messages, info, strict=True)]
        return ray.put(
            (
                [{"role": "environment", "content": "7" if again else ""} for again in more],
                info,
                None,
                torch.tensor([float(sample) for sample in info]),
                torch.tensor([not again for again in more]),
                None,
            )
        )


def prompt_of(batch: Batch, sample: int) -> int:
    """Tokens of a prompt."""
    return max(1, int(batch.lengths()[sample]) // 3)


def prompts(batch: Batch) -> Any:
    """What the driver sends to the actor. A prompt begins with the number of its sample."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    tokens = [[i, *some[1:]] for i, some in enumerate(batch.tokens())]
    sizes = [prompt_of(batch, i) for i in range(batch.samples)]
    return BatchedDataDict(
        {
            "message_log": [
                [{"role": "user", "content": "?", "token_ids": torch.tensor(some[:size])}]
                for some, size in zip(tokens, sizes, strict=True)
            ],
            "length": torch.tensor(sizes),
            "loss_multiplier": torch.ones(batch.samples),
            "extra_env_info": list(range(batch.samples)),
            "task_name": ["numbers"] * batch.samples,
            "idx": list(range(batch.samples)),
        }
    )


class Reads:
    """NeMo RL's client, with a record of what the driver reads through it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.reads: list[tuple[list[str], int, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def get_samples(self, sample_ids: Any, partition_id: Any, select_fields: Any) -> Any:
        began = time.perf_counter()
        size = 0
        try:
            made = self.client.get_samples(sample_ids, partition_id, select_fields)
            columns = [made.get(name) for name in made.keys()]
            size = sum((some.values() if some.is_nested else some).nbytes for some in columns if torch.is_tensor(some))
        finally:
            self.reads.append((list(select_fields), size, 1e3 * (time.perf_counter() - began)))
        return made

    def close(self) -> None:
        """A policy that is gone closes its client, which others still have."""

    def taken(self) -> list[tuple[list[str], int, float]]:
        taken, self.reads = self.reads, []
        return taken


def own_policy(plane: Any, cfg: dict[str, Any], client: Any, sent: list[Any]) -> Any:
    """NeMo RL's own policy, without its workers: what is sent to them is kept."""
    policy = object.__new__(plane.TQPolicy)
    policy.cfg, policy.dp_client, policy.tq_partition_id = cfg, client, "train"
    policy.sharding_annotations = types.SimpleNamespace(get_axis_size=lambda axis: RANKS)
    policy.use_dynamic_batches, policy.use_sequence_packing = False, True
    policy.sequence_packing_args = {
        "algorithm": "modified_first_fit_decreasing", "input_key": "input_ids", "input_lengths_key": "input_lengths",
        "sequence_length_pad_multiple": cfg["make_sequence_length_divisible_by"],
    }  # fmt: skip
    policy.flops_tracker, policy._router_replay_enabled = None, cfg["router_replay"]["enabled"]
    policy.worker_group = types.SimpleNamespace(
        shutdown=lambda **_: True,
        run_all_workers_sharded_data=lambda method, **given: sent.append(given["meta"]),
        get_all_worker_results=lambda _: [{"global_loss": 0.0, "grad_norm": 0.0, "all_mb_metrics": {}}] * RANKS,
    )
    return policy


def passes(plane: Any, cfg: dict[str, Any], client: Any, meta: Any) -> dict[str, Any]:
    """Log-probs, log-probs of the reference and training: what workers would get, and what the driver read for it."""
    sent: list[Any] = []
    policy = own_policy(plane, cfg, client, sent)
    client.taken()
    policy.get_logprobs_from_meta(meta)
    policy.get_reference_policy_logprobs_from_meta(meta)
    metrics = policy.train_from_meta(meta, None)["all_mb_metrics"]
    place = {name: i for i, name in enumerate(meta.sample_ids)}
    names = contracts.NEMO_RL["shard"]
    return {
        "shards": [
            [
                {
                    "samples": [place[name] for name in part.sample_ids],
                    "fields": part.fields,
                    **{name: part.extra_info[name] for name in names},
                }
                for part in parts
            ]
            for parts in sent
        ],
        "reads": client.taken(),
        "metrics": {name: value[0] for name, value in metrics.items()},
    }


def held(own: Any, plane: Any) -> list[str]:
    """The names that NeMo RL has as they are written down."""
    from nemo_rl.data_plane import interfaces  # type: ignore[import-not-found]

    owner = types.SimpleNamespace(
        # Ray wraps the methods of its subclass, and keeps the class itself.
        SyncRolloutActor=own.SyncRolloutActor.__ray_metadata__.modified_class.__ray_actor_class__,
        kv_first_write=own.kv_first_write, DataPlaneClient=interfaces.DataPlaneClient, TQPolicy=plane.TQPolicy,
    )  # fmt: skip
    for name, contract in contracts.NEMO_RL_DATA_PLANE.items():
        contracts.holds(owner, name, contract)
    return list(contracts.NEMO_RL_DATA_PLANE)


def stored(client: Any, meta: Any, field: str) -> str:
    """Whether the queue has a field of these samples."""
    try:
        found = client.get_samples(meta.sample_ids, meta.partition_id, [field])
    except Exception as error:
        return type(error).__name__
    return "there" if field in found.keys() else "not there"


def main(folder: pathlib.Path, batch: Batch) -> None:
    from nemo_rl.data_plane import build_data_plane_client
    from nemo_rl.data_plane.adapters import transfer_queue  # type: ignore[import-not-found]
    from nemo_rl.experience import sync_rollout_actor as own  # type: ignore[import-not-found]
    from nemo_rl.models.policy import tq_policy as plane  # type: ignore[import-not-found]
    from ray_cluster import local_cluster  # type: ignore[import-not-found]

    from routepack.adapters import Settings, nemo_rl

    said: dict[str, Any] = {"held": held(own, plane)}
    # Processes of these tests have TransferQueue already; NeMo RL would have Ray install it.
    transfer_queue._TQ_RUNTIME_ENV_PATCHED = True
    data_plane = {
        "enabled": True, "impl": "transfer_queue", "backend": "simple", "storage_capacity": 10_000,
        "num_storage_units": 1, "claim_meta_poll_interval_s": 0.1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "mixtral", "num_local_experts": batch.experts}))
    tokens = 4 * -(-max(batch.lengths()) // 4) + 40
    cfg = config(
        batch, model_name=str(folder), max_total_sequence_length=1 << 20, generation=None,
        sequence_packing={"enabled": True, "train_mb_tokens": tokens, "logprob_mb_tokens": tokens},
    )  # fmt: skip
    said["cap"] = tokens
    master = types.SimpleNamespace(
        policy=cfg, env={}, grpo=types.SimpleNamespace(max_rollout_turns=2, deduplicate_multimodal_data=False)
    )
    shipped = own.SyncRolloutActor.__ray_metadata__.modified_class
    before = dict(vars(shipped))
    nemo_rl.install(Settings(cost=COST, **PATIENT))
    with local_cluster(cpus=4) as ray:
        client = Reads(build_data_plane_client(data_plane, bootstrap=True))
        given = (Generation(batch), Tokenizer(), {"numbers": Environment()}, master, data_plane)
        actors = {"with": own.SyncRolloutActor.options(num_cpus=0).remote(*given)}
        hidden = {"env_vars": {HIDE: "1"}}
        actors["without"] = own.SyncRolloutActor.options(num_cpus=0, runtime_env=hidden).remote(*given)
        policy = own_policy(plane, cfg, client, [])
        policy.prepare_step(batch.samples, GROUP)
        metas: dict[str, Any] = {}
        for how, actor in actors.items():
            began = time.perf_counter()
            metas[how], carry, _, more = ray.get(
                actor.rollout_to_tq.remote(prompts(batch), partition_id="train", group_size=GROUP)
            )
            meta = metas[how]
            said[how] = {
                "fields": meta.fields,
                "lengths": meta.sequence_lengths,
                "carry": sorted(carry),
                "generation": more,
                "rollout_ms": 1e3 * (time.perf_counter() - began),
                "stored": stored(client, meta, COUNTS),
                **passes(plane, cfg, client, meta),
            }
            routes = policy.read_from_dataplane(meta, select_fields=[ROUTES])[ROUTES]
            read = policy.read_from_dataplane(meta, select_fields=["input_ids", "content", "turn_roles"])
            said[how]["content"] = [list(some) for some in read["content"]]
            said[how]["roles"] = [list(some) for some in read["turn_roles"]]
            arrays = {"routes": routes, "input_ids": read["input_ids"]}
            if said[how]["stored"] == "there":
                arrays["counts"] = client.get_samples(meta.sample_ids, "train", [COUNTS])[COUNTS]
            np.savez(folder / f"{how}.npz", **{name: some.numpy() for name, some in arrays.items()})
        both = metas["with"].concat(metas["without"])
        said["both"] = passes(plane, cfg, client, both)
        for how, meta in metas.items():
            policy.finish_step(meta)
            said[how]["after"] = {field: stored(client, meta, field) for field in (COUNTS, ROUTES)}
        nemo_rl.uninstall()
        said["left as it was"] = dict(vars(shipped)) == before
        for actor in actors.values():
            ray.get(actor.shutdown.remote())
        client.client.close()
    (folder / "result.json").write_text(json.dumps(said))


if __name__ == "__main__":
    import nemo_rl_rollouts_job  # type: ignore[import-not-found]  # by the name under which an actor finds it

    nemo_rl_rollouts_job.main(pathlib.Path(sys.argv[1]), Batch(**json.loads("".join(sys.argv[2:]) or "{}")))
