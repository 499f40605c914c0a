# SPDX-License-Identifier: Apache-2.0
"""Rollouts of verl's own agent-loop workers on a local Ray cluster, into TransferQueue (V1) and as batches (V0).

The model is a folder with a configuration and a tokenizer. What stands in for an inference engine is its client, which
draws tokens and routes; all else is verl's, TransferQueue's and Ray's own.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import dataclasses
import json
import os
import pathlib
import time
import types
import zlib
from collections.abc import Iterator
from typing import Any

import hydra
import numpy as np
import numpy.typing as npt
import ray
import torch
import transfer_queue as tq  # type: ignore[import-untyped]
import verl.trainer.ppo.ray_trainer as v0
import verl.trainer.ppo.v1.trainer_base as v1
from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.protocol import DataProto
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils import tensordict_utils as tu
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from routepack.adapters import verl_cells

PROMPTS, GROUP, DP, CAP = 8, 4, 4, 256
LAYERS, EXPERTS, TOP_K = 3, 8, 2  #: layer 0 is dense
PROMPT_WIDTH, ANSWER_WIDTH = 64, 96
PATIENCE_S = 180.0
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: pathlib.Path) -> None:
    """A mixture of experts of Qwen's kind without weights; its tokens are bytes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    import transformers

    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 260,
        "hidden_size": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 16,
        "num_hidden_layers": LAYERS,
        "mlp_only_layers": [0],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer: Any = transformers.PreTrainedTokenizerFast
    fast = tokenizer(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def configuration(folder: pathlib.Path) -> Any:
    """verl's own configuration of a Megatron trainer, as its command line would change it."""
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose(
            "ppo_trainer",
            [
                "model_engine=megatron",
                f"data.max_prompt_length={PROMPT_WIDTH}",
                f"data.max_response_length={ANSWER_WIDTH}",
                f"data.train_batch_size={PROMPTS}",
                f"actor_rollout_ref.model.path={folder}",
                "actor_rollout_ref.actor.use_dynamic_bsz=true",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={CAP}",
                "actor_rollout_ref.actor.megatron.expert_model_parallel_size=2",
                "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1",
                "actor_rollout_ref.actor.megatron.router_replay.mode=R3",
                "actor_rollout_ref.rollout.name=vllm",
                f"actor_rollout_ref.rollout.n={GROUP}",
                "actor_rollout_ref.rollout.enable_rollout_routing_replay=true",
                "actor_rollout_ref.rollout.agent.num_workers=2",
                "transfer_queue.backend.SimpleStorage.num_data_storage_units=2",
            ],
        )


class Client(LLMServerClient):
    """An engine's answers, drawn from the prompt and from how often it came.

    Some answers are longer than is allowed, some engines record the last token too, and some lose the first ones of a
    prefix. Routes come out of Ray's store, as from a server: nobody may write into them.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.asked: collections.Counter[bytes] = collections.Counter()

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        prompt = bytes(i % 256 for i in prompt_ids)
        sibling = self.asked[prompt] % GROUP
        self.asked[prompt] += 1
        draw = np.random.default_rng([zlib.crc32(prompt), sibling])
        size = 1 + min(int(np.exp(draw.normal(3.0, 1.0))), ANSWER_WIDTH)
        routes = drawn(draw, zlib.crc32(prompt), len(prompt_ids) + size - int(draw.integers(8) > 0))
        if draw.integers(8) == 0:
            routes[:5] = 0
        await asyncio.sleep(0.02 * draw.random())  # siblings end in any order
        return TokenOutput(
            token_ids=draw.integers(0, 256, size).tolist(),
            routed_experts=await ray.put(routes),
            stop_reason="completed",
            extra_fields={"global_steps": 1, "min_global_steps": 1, "max_global_steps": 1},
        )


def drawn(draw: np.random.Generator, group: int, rows: int) -> npt.NDArray[np.uint8]:
    """Distinct experts [rows, layers, k]; siblings lean the same way."""
    lean = np.random.default_rng(group).normal(0.0, 1.5, (LAYERS, EXPERTS))
    ids = np.argsort(-(lean + draw.gumbel(size=(rows, LAYERS, EXPERTS))), axis=-1)[..., :TOP_K].astype(np.uint8)
    ids[:, 0] = 0
    return ids


class Elsewhere:
    """An actor class whose processes have other environment variables than the cluster's."""

    def __init__(self, actors: Any, **variables: str) -> None:
        self.actors, self.variables = actors, variables

    def options(self, **chosen: Any) -> Any:
        return self.actors.options(runtime_env={"env_vars": self.variables}, **chosen)


@dataclasses.dataclass(frozen=True)
class Site:
    """A cluster with workers that have the hooks, and workers that do not."""

    config: Any
    stored: Any  #: verl's managers of agent loops, V1
    stored_plain: Any
    held: Any  #: V0


@contextlib.contextmanager
def exported(**variables: str) -> Iterator[None]:
    """What a user exports before a job starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def started(config: Any) -> Site:
    tq.init(config.transfer_queue)
    one = copy.deepcopy(config)
    one.actor_rollout_ref.rollout.agent.num_workers = 1
    client = Client(config)
    to_the_queue: Any = AgentLoopManagerTQ
    site = Site(
        config,
        stored=to_the_queue(config, client),
        stored_plain=to_the_queue(one, client),
        held=AgentLoopManager(one, client),
    )
    plain = Elsewhere(site.stored_plain.agent_loop_workers_class, VERL_USE_EXTERNAL_MODULES="")
    site.stored_plain.agent_loop_workers_class = plain
    for manager in (site.stored, site.held, site.stored_plain):
        asyncio.run(manager._init_agent_loop_workers())
    return site


def prompts(word: str) -> dict[str, Any]:
    """What a data loader of verl gives, as far as agent loops ask."""
    said = np.empty(PROMPTS, dtype=object)
    said[:] = [[{"role": "user", "content": word + " so" * i}] for i in range(PROMPTS)]
    uid = np.array([f"{word}{time.monotonic_ns()}x{i}" for i in range(PROMPTS)], dtype=object)
    return {"raw_prompt": said, "index": np.arange(PROMPTS), "uid": uid}


class Workers:
    """What trainers ask of their training ranks before a pass: they would run in this process."""

    def __init__(self) -> None:
        self._dispatch_info = {"actor": list(range(DP))}

    def routepack_obeys(self) -> list[str]:
        return [verl_cells.routepack_obeys(None)] * DP


class Stored(v1.PPOTrainer):
    """verl's V1 trainer without what it starts."""

    on_step_end: Any = None
    on_sample_end: Any = None

    def __init__(self, config: Any, manager: Any = None) -> None:
        self.config, self.agent_loop_manager = config, manager
        self.use_critic, self.global_steps, self.trainer_mode = False, 1, "sync"
        self.tokenizer = types.SimpleNamespace(eos_token_id=256)
        self.actor_rollout_wg = Workers()

    def rollout(self, word: str) -> Any:
        """Names of what all prompts have become, as `step` gets them."""
        batch = tu.get_tensordict(prompts(word))
        tu.assign_non_tensor_data(batch, "global_steps", 1)
        self._submit_batch_to_rollout(batch)
        return self.sampled(list(batch["uid"]), "train")

    def sampled(self, prompts: list[str], partition: str) -> Any:
        until, said = time.monotonic() + PATIENCE_S, {"pending"}
        while said & {"pending", "running"}:
            assert time.monotonic() < until, f"no rollouts within {PATIENCE_S:.0f} s"
            time.sleep(0.1)
            tags = tq.kv_list(partition)[partition]
            said = {tags[prompt]["status"] for prompt in prompts}
        assert said == {"finished"}, f"rollouts: found {sorted(said)}, wanted 'finished' for all"
        buffers: Any = ReplayBuffer
        buffer = buffers("sync", self.config.trainer, None, "drop", {}, poll_interval=0.1)
        return buffer.sample(global_steps=1, partition_id=partition, batch_size=len(prompts))[0]


class Held(v0.RayPPOTrainer):
    """verl's V0 trainer likewise."""

    def __init__(self, config: Any, manager: Any = None) -> None:
        self.config, self.manager = config, manager
        self.actor_rollout_wg = Workers()

    def rollout(self, word: str) -> Any:
        """As `fit` does it, up to the batch that is balanced."""
        said = prompts(word)
        batch: Any = DataProto.from_dict(tensors={"dummy": torch.zeros(PROMPTS, 1)}, non_tensors=said)
        asked: Any = self._get_gen_batch(batch)
        asked.meta_info["global_steps"] = 1
        made = self.manager.generate_sequences(asked.repeat(repeat_times=GROUP, interleave=True))
        made.meta_info.pop("timing")
        return batch.repeat(repeat_times=GROUP, interleave=True).union(made)
