# SPDX-License-Identifier: Apache-2.0
"""Writes data/*: the files that the frameworks' own code makes of known routes.

Not run by the tests. Needs torch, pybase64, einops, jaxtyping, pydantic and a folder with the source trees named in
data/README.md; whatever else those import (servers, trainers) is replaced by an empty module, since none of it touches
the files.

    cd python/tests && python -m convert.make_framework_files SOURCES
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
import types
from unittest import mock

import numpy as np
import torch

from convert.framework_routes import EXPERTS, LAYERS, TOP_K, prompt_of, routes_of, tokens_of

OUT = pathlib.Path(__file__).parent / "data"
HOLLOW = (
    "ray",
    "sglang",
    "megatron.core",
    "vllm",
    "transformers",
    "httpx",
    "areal",
    "slime.utils.http_utils",
    "orjson",
    "aiohttp",
    "loguru",
)


class Hollow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves empty modules under the names in HOLLOW that nobody else has."""

    def find_spec(self, name, path=None, target=None):
        if any(name == part or name.startswith(part + ".") for part in HOLLOW):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda attribute: mock.MagicMock(name=attribute)
        return module

    def exec_module(self, module):
        pass


def module_from(path: pathlib.Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def b64(array: np.ndarray) -> str:
    import pybase64

    return pybase64.b64encode(array.tobytes()).decode()


def slime(sources: pathlib.Path) -> None:
    from slime.observability import rollout_data_utils, train_data_utils
    from slime.utils.dp_schedule import build_dp_schedule
    from slime.utils.types import Sample

    args = types.SimpleNamespace(
        num_layers=LAYERS,
        moe_router_topk=TOP_K,
        use_dynamic_batch_size=True,
        max_tokens_per_gpu=24,
        balance_data=False,
        balance_by_flops=False,
        micro_batch_size=None,
        sglang_speculative_algorithm=False,
        moe_layer_freq=[0, 1, 1],
    )
    samples = []
    for i in range(8):
        t, prompt, routes = tokens_of(i), prompt_of(i), routes_of(i).astype(np.int32)
        sample = Sample(group_index=i // 2, index=i, prompt="p", tokens=list(range(prompt)))
        half = prompt + (t - prompt) // 2
        first = {"routed_experts": b64(routes[: half - 1]), "finish_reason": {"type": "abort"}}
        rest = {
            "routed_experts": b64(routes[prompt - 1 :]),
            "routed_experts_start_len": prompt - 1,
            "finish_reason": {"type": "stop"},
        }
        sample.append_response_tokens(
            args, tokens=list(range(prompt, half)), log_probs=[0.0] * (half - prompt), meta_info=first
        )
        sample.append_response_tokens(args, tokens=list(range(half, t)), log_probs=[0.0] * (t - half), meta_info=rest)
        sample.reward = float(i)
        samples.append(sample)
    rollout_data_utils.save_debug_rollout_data(
        str(OUT / "slime_rollout_{rollout_id}.pt"), samples, rollout_id=7, evaluation=False
    )
    rollout_data_utils.validate_rollout_routed_experts_for_replay([s.rollout_routed_experts for s in samples], args)
    config = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    partitions, cells, num, sizes = build_dp_schedule(
        args, config, [len(s.tokens) for s in samples], global_batch_size=4, rollout_indices=[s.index for s in samples]
    )
    shards = []
    for rank in range(2):
        part = partitions[rank]
        data = {
            "partition": part,
            "tokens": [samples[j].tokens for j in part],
            "response_lengths": [samples[j].response_length for j in part],
            "loss_masks": [samples[j].loss_mask for j in part],
            "sample_indices": [samples[j].index for j in part],
            "raw_reward": [s.reward for s in samples],
            "total_lengths": [len(s.tokens) for s in samples],
            "global_batch_sizes": sizes,
            "num_microbatches": num,
            "micro_batch_indices": cells[rank],
        }  # (the replay has taken rollout_routed_experts out, as actor.fill_routing_replay does)
        rollout_data_utils.tensorize_rollout_data_for_training(data)
        shards.append({"rank": rank, "data_parallel_rank": rank, "rollout_data": train_data_utils._to_cpu(data)})
    torch.save(train_data_utils._build_dump_payload(shards, rollout_id=7, writer_rank=0), OUT / "slime_train_7.pt")


def nemo(sources: pathlib.Path) -> None:
    codec = module_from(sources / "nemo_rl/utils/routed_experts_codec.py", "routed_experts_codec")
    with open(OUT / "nemo_rl.jsonl", "w") as file:
        for i in range(4):
            t = tokens_of(i)
            rows = np.concatenate([routes_of(i)[:, 1:], np.full((1, LAYERS - 1, TOP_K), -1)])
            text = codec.encode_routed_experts(torch.tensor(rows, dtype=[torch.int8, torch.int16, torch.int32][i % 3]))
            file.write(
                json.dumps(
                    {
                        "routed_experts": text,
                        "prompt_token_ids": list(range(prompt_of(i))),
                        "generation_token_ids": list(range(prompt_of(i), t)),
                    }
                )
                + "\n"
            )


def skyrl(sources: pathlib.Path) -> None:
    sys.modules["skyrl"] = package = types.ModuleType("skyrl")  # its __init__ starts more than is needed
    package.__path__ = [str(sources / "skyrl")]
    for name in (
        "skyrl.backends",
        "skyrl.backends.skyrl_train",
        "skyrl.backends.skyrl_train.utils",
        "skyrl.train",
        "skyrl.train.dataset",
        "skyrl.backends.skyrl_train.inference_servers",
    ):
        sys.modules[name] = part = types.ModuleType(name)
        part.__path__ = [str(sources / name.replace(".", "/"))]
    metadata = types.ModuleType("skyrl.backends.skyrl_train.distributed.megatron.token_metadata")
    metadata.__getattr__ = lambda attribute: mock.MagicMock(name=attribute)
    for name in ("skyrl.backends.skyrl_train.distributed", "skyrl.backends.skyrl_train.distributed.megatron"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules[metadata.__name__] = metadata
    wire = importlib.import_module("skyrl.backends.skyrl_train.inference_servers.generate_wire")
    preprocess = importlib.import_module("skyrl.train.dataset.preprocess")
    with open(OUT / "skyrl.jsonl", "w") as file:
        for i in range(4):
            choice = {"token_ids": list(range(prompt_of(i), tokens_of(i))), "finish_reason": "stop", "logprobs": None}
            choice["routed_experts"] = wire.pack_routed_experts(routes_of(i))
            file.write(json.dumps({"prompt_token_ids": list(range(prompt_of(i))), "choices": [choice]}) + "\n")
    prompts = [list(range(prompt_of(i))) for i in range(4)]
    responses = [list(range(prompt_of(i), tokens_of(i))) for i in range(4)]
    batch = preprocess.convert_prompts_responses_to_batch_tensors(
        0,
        prompts,
        responses,
        [[0.0] * len(r) for r in responses],
        [[1] * len(r) for r in responses],
        rollout_expert_indices=[routes_of(i) for i in range(4)],
    )
    attention, indices = batch[1], batch[-1]
    padding = preprocess.make_router_padding_mask(attention, [len(routes_of(i)) for i in range(4)])
    torch.save(
        {
            "attention_mask": attention,
            "response_mask": batch[2],
            "rollout_expert_indices": indices,
            "router_padding_mask": padding,
        },
        OUT / "skyrl_batch.pt",
    )


def areal(sources: pathlib.Path) -> None:
    sys.modules["areal.engine.r3.asserts"] = asserts = types.ModuleType("areal.engine.r3.asserts")
    asserts.r3_error = lambda text, **context: ValueError(f"{text} {context}")
    preprocess = module_from(sources / "areal_branch/areal/engine/r3/preprocess.py", "areal_r3_preprocess")
    flat = []
    for i in range(4):
        raw = preprocess.decode_sglang_routed_experts(
            b64(routes_of(i).astype(np.int32)),
            prompt_tokens=prompt_of(i),
            completion_tokens=tokens_of(i) - prompt_of(i),
            source="x",
        )
        flat.append(raw if i != 2 else raw[:-3])  # sample 2 lost rows: invalid
    lengths = [tokens_of(i) for i in range(4)]
    batch = preprocess.preprocess_routed_experts_batch(flat, seq_lens=lengths, num_moe_layers=LAYERS - 1, topk=TOP_K)
    batch["attention_mask"] = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    torch.save(batch, OUT / "areal_r3.pt")


def verl(sources: pathlib.Path) -> None:
    """`AgentLoopOutput.as_dict`, and a jagged batch of what it returns, as the trainer's queue keeps it."""
    text = (sources / "verl/experimental/agent_loop/agent_loop.py").read_text()
    wanted = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name in ("AgentLoopMetrics", "AgentLoopOutput")
    ]
    from typing import Any, Optional

    from pydantic import BaseModel, ConfigDict

    space = {
        "BaseModel": BaseModel,
        "ConfigDict": ConfigDict,
        "Any": Any,
        "Optional": Optional,
        "torch": torch,
        "np": np,
        "__name__": "verl_agent_loop",
    }
    sys.modules["verl_agent_loop"] = types.ModuleType("verl_agent_loop")
    exec(compile(ast.Module(wanted, []), "agent_loop.py", "exec"), space)
    space["AgentLoopOutput"].model_rebuild(_types_namespace=space)
    rows = []
    for i in range(4):
        p, t = prompt_of(i), tokens_of(i)
        output = space["AgentLoopOutput"](
            prompt_ids=list(range(p)),
            response_ids=list(range(p, t)),
            response_mask=[1] * (t - p),
            routed_experts=routes_of(i).tolist(),
            metrics=space["AgentLoopMetrics"](),
        )
        rows.append(output.as_dict()["routed_experts"])
    torch.save({"routed_experts": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, OUT / "verl_jagged.pt")


def megatron(sources: pathlib.Path) -> None:
    trace = module_from(sources / "megatron/core/transformer/moe/router_trace.py", "router_trace")
    for rank in range(2):
        tracer = trace.RouterTracer(str(OUT / "megatron_trace"), max_steps=2, rank=rank, training_mode=True)
        for step in range(2):
            ids = torch.tensor(routes_of(2 * step + rank)[:, 1:])
            tracer.record_indices(ids, layer_ids=[1, 2])
            tracer.record_indices([ids[:, 0]], layer_ids=[0], block="mtp", mtp_idx=0)
            tracer.advance_step(step)


def sglang(sources: pathlib.Path) -> None:
    envs = types.ModuleType("sglang.srt.environ")
    envs.envs = mock.MagicMock()
    sys.modules["sglang.srt.environ"] = envs
    wire = module_from(sources / "sglang_wire/routed_experts_wire.py", "routed_experts_wire")
    with open(OUT / "sglang.jsonl", "w") as file:
        for i in range(6):
            envs.envs.SGLANG_ROUTED_EXPERTS_DTYPE.get.return_value = ["int32", "uint16", "uint8"][i % 3]
            text, name = wire.encode_routed_experts_for_wire(torch.tensor(routes_of(i), dtype=torch.int32))
            meta = {
                "prompt_tokens": prompt_of(i),
                "completion_tokens": tokens_of(i) - prompt_of(i),
                "routed_experts": text,
            }
            if i % 3 or i > 2:
                meta["routed_experts_dtype"] = name
            file.write(json.dumps({"text": "", "meta_info": meta}) + "\n")

    recorder = module_from(sources / "sglang_pkg/sglang/srt/eplb/expert_distribution.py", "expert_distribution")
    folder = OUT / "sglang_recorder"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.pt"):
        old.unlink()
    recorder.envs.SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR.get.return_value = str(folder)
    # two slots more than experts: experts 0 and 1 have copies, and everything stands backwards
    maps = torch.tensor([[1, 0, *range(EXPERTS - 1, -1, -1)]] * LAYERS)
    location = types.SimpleNamespace(
        num_layers=LAYERS,
        num_physical_experts=EXPERTS + 2,
        num_logical_experts=EXPERTS,
        physical_to_logical_map=maps,
        ep_size=2,
    )
    features = mock.MagicMock()
    features.overlap.enable_two_batch_overlap = False
    features.enable_expert_distribution_metrics = features.moe.enable_expert_distribution_metrics = False
    recorder.get_exec = lambda: features
    recorder.get_schedule = lambda: types.SimpleNamespace(chunked_prefill_size=8)
    recorder.get_device_namespace = lambda: types.SimpleNamespace(device="cpu")
    detail = recorder._DetailSinglePassGatherer(location, 0)
    recorder._UtilizationRateAccumulatorMixin.__init__ = recorder._Accumulator.__init__  # metrics would ask for a group
    recorder._UtilizationRateAccumulatorMixin._enable = False
    keep = recorder._DetailAccumulator(location, 0)
    for i in range(2):
        detail.reset()
        rows = routes_of(i)
        detail._metadata = {
            "input_ids": list(range(len(rows))),
            "positions": list(range(len(rows))),
            "extend_seq_lens": [len(rows)],
            "forward_mode": 1,
        }
        for layer in range(1, LAYERS):  # the dense layer never calls
            physical = EXPERTS + 1 - rows[:, layer]
            even = (np.arange(len(rows)) % 2 == 0)[:, None] & (rows[:, layer] < 2)
            physical = np.where(even, 1 - rows[:, layer], physical)  # the copies
            detail.on_select_experts(layer, torch.tensor(physical, dtype=torch.int32))
        keep.append(i, "primary", detail.collect(), {})
    keep.dump(output_mode="file")
    (path,) = folder.glob("*.pt")
    path.rename(folder / "per_token.pt")
    steps = torch.stack([record["global_physical_count"] for record in keep._records])
    counts = recorder._convert_global_physical_count_to_logical_count(steps, LAYERS, EXPERTS, maps)
    recorder._dump_to_file(
        "stat.pt", {"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None}
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", type=pathlib.Path)
    sources = parser.parse_args().sources.resolve()
    OUT.mkdir(exist_ok=True)
    sys.path[:0] = [str(sources)]
    sys.meta_path.insert(0, Hollow())
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    for make in (slime, nemo, skyrl, areal, verl, megatron, sglang):
        make(sources)


if __name__ == "__main__":
    main()
