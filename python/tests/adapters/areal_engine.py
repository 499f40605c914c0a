# SPDX-License-Identifier: Apache-2.0
"""AReaL's Megatron engine on the CPU: its own methods throughout, but for `initialize`, which reads files and asks for
a GPU. Imported by ranks alone: it makes modules of packages that only GPUs have."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pathlib
import sys
import types
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from transfer.megatron_model import HIDDEN, WIDTH, Layers, Model, Variant

from . import empty_packages
from .batches import Batch

GROUPED = Variant(exact=True, grouped=True)
SMOOTH = {"adam_eps": 1e-3}  #: where gradients are tiny, the order of sums does not decide the sign of a step
FORMAT = {"distrib_optim_sharding_type": "dp_reshardable"}  #: optimizer state in the order of slots
CAP, PAGE = 128, 256  #: AReaL pads a microbatch to pages; the model of these tests does it on all ranks alike
MBRIDGE = importlib.util.find_spec("mbridge") is not None
EMPTY = (
    "openai", "agents", "anthropic", "claude_agent_sdk", "litellm", "qwen_agent", "langchain", "langchain_openai",
    "openhands", "mbridge", "awex", "zstandard", "nltk", "seaborn", "daytona", "cookiecutter", "ninja", "mathruler",
    "swanlab", "trackio", "wandb", "datasets", "redis", "tensorboardX", "math_verify", "pylatexenc", "peft",
    "transformer_engine", "torch_memory_saver",
)  # fmt: skip
_GPU = (
    "megatron.bridge", "megatron.bridge.peft", "megatron.bridge.peft.lora",
    "areal.engine.megatron_utils.fp8.kernels", "areal.models.tree_attn", "areal.models.tree_attn.functional",
    "areal.models.tree_attn.module", "areal.models.tree_attn.tree", "areal.models.mcore.bailing_moe_bridge",
    "areal.models.mcore.bailing_moe",
)  # fmt: skip


def _uncompiled(function: Any = None, **_: Any) -> Any:
    return function or (lambda inner: inner)


torch.compile = _uncompiled  # AReaL compiles a few functions, which takes longer than all the rest
_finder = empty_packages.install(EMPTY)
try:
    for _name in _GPU:
        sys.modules[_name] = empty_packages.Empty(_name)
    import areal as _package

    for _name in ("trainer", "trainer.ppo", "engine"):  # packages that import every way to train
        _bare = sys.modules[f"areal.{_name}"] = types.ModuleType(f"areal.{_name}")
        _bare.__path__ = [str(pathlib.Path(_package.__path__[0], *_name.split(".")))]
    owner = importlib.import_module("areal.engine.megatron_engine")
    checkpointer = importlib.import_module("areal.engine.megatron_utils.checkpointer")
    hf_save = importlib.import_module("areal.models.mcore.hf_save")
    blueprint = importlib.import_module("areal.infra.rpc.guard.engine_blueprint")
    data_blueprint = importlib.import_module("areal.infra.rpc.guard.data_blueprint")
    guard = importlib.import_module("areal.infra.rpc.guard.app")
    local = importlib.import_module("areal.infra.scheduler.local")
    controllers = importlib.import_module("areal.infra.controller.train_controller")
    actors = importlib.import_module("areal.trainer.ppo.actor")
    data = importlib.import_module("areal.utils.data")
    options = importlib.import_module("areal.api.cli_args")
    structures = importlib.import_module("areal.api.io_struct")
    schedulers = importlib.import_module("areal.api.scheduler_api")
finally:
    sys.meta_path.remove(_finder)


class Gloo:
    """torch.distributed, which over gloo wants what it gathers in one shape, and not in one more dimension."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_gather_into_tensor(self, gathered: Any, mine: Any, group: Any) -> Any:
        return dist.all_gather_into_tensor(gathered.view(-1, *mine.shape[1:]), mine, group=group)


hf_save.dist = Gloo()  # type: ignore[attr-defined]


def _float16_module() -> Any:
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import Float16Module, MegatronModule

    class Wrapped(Float16Module):  # type: ignore[misc]
        """Megatron's own wrapper, for fp32 as well."""

        def __init__(self, config: Any, layers: int, grouped: bool) -> None:
            MegatronModule.__init__(self, config)
            self.module = Language(config, layers, grouped)
            self.model_type, self.vp_stage = ModelType.encoder_or_decoder, None

        def forward(self, input_ids: Any, **_: Any) -> Any:
            return self.module(input_ids)

        @property
        def layers(self) -> Any:
            return [block.mlp for block in self.module.decoder.layers]

        def set_input_tensor(self, tensor: Any) -> None: ...

    return Wrapped


class Language(Layers):
    """A language model with the names of Megatron's GPTModel, whose layers are its mixtures of experts."""

    def __init__(self, config: Any, layers: int, grouped: bool) -> None:
        super().__init__(config, layers, grouped)
        made = self._modules.pop("layers")
        self.pre_process = self.post_process = True
        self.share_embeddings_and_output_weights = True
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(torch.nn.Module() for _ in made)
        for block, layer in zip(self.decoder.layers, made, strict=True):
            block.mlp, block.layer_number = layer, layer.layer_number
        self.embedding = torch.nn.Module()
        self.embedding.word_embeddings = torch.nn.Embedding(Batch().vocabulary, HIDDEN)
        drawn = torch.randn(Batch().vocabulary, HIDDEN, generator=torch.Generator().manual_seed(5)) * 0.5
        self.embedding.word_embeddings.weight.data.copy_(drawn.to(config.params_dtype))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """@returns logits [1, tokens, vocabulary], as GPTModel does for packed sequences"""
        ids = input_ids.reshape(-1)
        weight = self.embedding.word_embeddings.weight
        x = weight[F.pad(ids, (0, PAGE - len(ids)))][:, None]
        for block in self.decoder.layers:
            x = x + block.mlp(x)[0]
        return (x[: len(ids), 0] @ weight.T)[None]

    def shared_embedding_or_output_weight(self) -> torch.Tensor:
        weight: torch.Tensor = self.embedding.word_embeddings.weight
        return weight

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        name = f"{prefix}embedding.word_embeddings."
        made = make_sharded_tensors_for_checkpoint({"weight": self.shared_embedding_or_output_weight()}, name)
        for number, block in enumerate(self.decoder.layers):
            made.update(block.mlp.sharded_state_dict(f"{prefix}decoder.layers.{number}.mlp.", (), metadata))
        return made  # type: ignore[no-any-return]


class Rollout:
    """A rollout engine that takes what it is sent."""

    def pause_generation(self) -> None: ...

    def continue_generation(self) -> None: ...

    def update_weights_from_distributed(self, meta: Any, specs: Any) -> Any:
        done: Any = Future()
        done.set_result(None)
        return done


class Lock:
    def acquire(self) -> None: ...

    def release(self) -> None: ...


class Engine(owner.MegatronPPOActor):  # type: ignore[misc,name-defined]
    """What a rollout engine is sent is kept in `sent`, by name."""

    def initialize(self, addr: Any, ft_spec: Any, *args: Any, **kwargs: Any) -> None:
        from megatron.core import parallel_state as mpu
        from megatron.core.distributed import finalize_model_grads

        self.device = torch.device("cpu")
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.is_pp_head = mpu.get_data_parallel_rank(with_context_parallel=True) == 0
        self.use_padded_seq, self.engine_lock = False, Lock()
        self.weight_update_group_name, self.weight_update_group_initialized = "update_weight_group_0", True
        self.weight_update_master_addr, self.weight_update_master_port = "", 0
        self.weight_update_group = dist.new_group([0])
        self.rollout_engine = self.rollout_coordinator = Rollout()
        self.sent: dict[str, torch.Tensor] = {}
        made = Model(GROUPED, body=_float16_module(), **SMOOTH)
        made.load(3)
        made.chunk.config.finalize_model_grads_func = finalize_model_grads
        self.tf_config = made.chunk.config
        self.hf_config = configuration()
        self.bridge: Any = bridge_of(self.hf_config) if MBRIDGE else None
        self.model = owner._MegatronModelList([made.chunk])
        self._glu_fc1_names = self._build_glu_fc1_names()
        if self.optimizer_config is not None:
            self.optimizer = made.optimizer
            # AReaL asks for Megatron's oldest format, which Megatron-Core 0.16 and 0.17 do not write any more.
            sharded = functools.partial(self.optimizer.sharded_state_dict, metadata=FORMAT)
            self.optimizer.sharded_state_dict = sharded
            self.checkpointer = checkpointer.MegatronCheckpointManager(
                model=self.model, optimizer=self.optimizer, lr_scheduler=None, use_distributed_optimizer=True
            )
        self._initialized = True

    def _update_bucket_weights_from_distributed(self, meta: Any, converted_named_tensors: Any) -> None:
        for name, tensor in converted_named_tensors:
            self.sent[f"{name}, again" if name in self.sent else name] = tensor.detach().clone()
        super()._update_bucket_weights_from_distributed(meta, converted_named_tensors)

    def load(self, meta: Any) -> None:
        with torch.no_grad():  # fp32 weights are their own masters
            super().load(meta)

    def spoil(self, how: str) -> None:
        """What the data plane says from now on when it shall move. Empty: what it always says."""
        from routepack import InvalidInput
        from routepack.adapters.experts import WorkerExperts
        from routepack.transfer.megatron import MegatronState

        def refuse(state: Any) -> Any:
            if how == "refused" and dist.get_rank() == 1:
                raise InvalidInput("no bytes today")
            return facts(state)

        def lose(*_: Any) -> str:
            raise RuntimeError("a layer is torn")

        facts, moved = (
            vars(Engine).get("_facts", MegatronState.facts),
            vars(Engine).get("_try", WorkerExperts.try_move),
        )
        Engine._facts, Engine._try = facts, moved
        MegatronState.facts = refuse if how else facts  # type: ignore[method-assign,assignment]
        WorkerExperts.try_move = lose if how == "torn" else moved  # type: ignore[method-assign,assignment]

    def use_stacks(self, on: bool) -> None:
        """Whether Hugging Face's format has one tensor for all experts of a layer."""
        self.bridge.__class__, self.bridge.stacks = stacking() if on else type(bridge_of(self.hf_config)), {}

    def make_moments(self) -> None:
        """torch's Adam has none before its first step, and Megatron wants to know how many there were."""
        for one in self.optimizer.chained_optimizers:
            for group in one.optimizer.param_groups:
                for held in group["params"]:
                    moments = {word: torch.zeros_like(held) for word in ("exp_avg", "exp_avg_sq")}
                    one.optimizer.state[held] = {"step": torch.zeros(()), **moments}

    def part_steps(self) -> None:
        """Megatron gives all of torch's Adam one tensor to count in."""
        for one in self.optimizer.chained_optimizers:
            for state in one.optimizer.state.values():
                state["step"] = state["step"].clone()

    def maps(self) -> list[list[int]]:
        """Where experts are, as this rank has it."""
        from routepack.adapters import areal_experts

        placed = areal_experts.experts_of(self)
        return [] if placed is None else placed.placement.physical_to_logical.tolist()


def configuration() -> Any:
    """A Qwen3-MoE of this size."""
    import transformers

    kind: Any = transformers.Qwen3MoeConfig
    made = kind(
        vocab_size=Batch().vocabulary, hidden_size=HIDDEN, num_hidden_layers=GROUPED.layers,
        num_experts=GROUPED.experts, num_experts_per_tok=2, moe_intermediate_size=WIDTH, intermediate_size=WIDTH,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    made.rope_theta = 1e6
    return made


def bridge_of(config: Any) -> Any:
    """mbridge's own for Qwen3-MoE."""
    from mbridge.models.qwen3moe import Qwen3MoEBridge

    return Qwen3MoEBridge(config, dtype=torch.float32)


@functools.cache
def stacking() -> Any:
    """A bridge as mbridge's own for Qwen3-VL-MoE: an expert waits until all of its layer are there."""
    from mbridge.models.qwen3moe import Qwen3MoEBridge

    class Stacking(Qwen3MoEBridge):  # type: ignore[misc]
        _MLP_MAPPING = {
            **Qwen3MoEBridge._MLP_MAPPING,
            "mlp.experts.linear_fc1": ["model.layers.{layer_number}.mlp.experts.gate_up_proj"],
            "mlp.experts.linear_fc2": ["model.layers.{layer_number}.mlp.experts.down_proj"],
        }

        def _weight_to_hf_format(self, mcore_weights_name: str, mcore_weights: Any) -> Any:
            if ".mlp.experts." not in mcore_weights_name:
                return super()._weight_to_hf_format(mcore_weights_name, mcore_weights)
            (name,) = self._weight_name_mapping_mcore_to_hf(mcore_weights_name)
            stack = self.stacks.setdefault(name, {})
            stack[int(mcore_weights_name.rpartition("weight")[2])] = mcore_weights.T
            if len(stack) < GROUPED.experts:
                return [], []
            return [name], [torch.stack([self.stacks[name][e] for e in range(GROUPED.experts)])]

    return Stacking


class Scheduler(local.LocalScheduler):  # type: ignore[misc,name-defined]
    """AReaL's, whose workers are there already: its calls go through HTTP to AReaL's own servers."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self._workers: dict[str, list[Any]] = {}

    def create_workers(self, job: Any) -> list[str]:
        made = [
            schedulers.Worker(f"{job.role}/{i}", "127.0.0.1", [str(p), str(p)], []) for i, p in enumerate(self.ports)
        ]
        self._workers[job.role] = [local.WorkerInfo(worker, None, job.role, [], 0.0, "") for worker in made]
        return [worker.id for worker in made]

    def get_workers(self, role: str, timeout: Any = None) -> list[Any]:
        return [info.worker for info in self._workers[role]]


def actor_configuration(**more: Any) -> Any:
    spec = options.SchedulingSpec(cmd="python -m routepack.adapters.areal")
    return options.PPOActorConfig(
        **{
            "experiment_name": "tests", "trial_name": "tests", "backend": "megatron:d4e2", "dtype": "float32",
            "mb_spec": options.MicroBatchSpec(max_tokens_per_mb=CAP), "ppo_n_minibatches": 2,
            "optimizer": options.OptimizerConfig(), "scheduling_spec": (spec,), "use_decoupled_loss": False,
            **more,
        }
    )  # fmt: skip
