# SPDX-License-Identifier: Apache-2.0
"""The same model in one process, without slots, ranks or buffers: all experts in their own order."""

from __future__ import annotations

import torch

from . import moe
from .logical import LogicalState
from .moe import Routing, Shape, Weight
from .optimizer import adam

BATCH = 4  # samples that go through together


class Reference:
    def __init__(self, shape: Shape, state: LogicalState) -> None:
        self.shape = shape
        self.state = {name: value.clone() for name, value in state.items()}

    def step(self, samples: list[torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor, LogicalState]:
        """One optimizer step. @returns losses and outputs per sample; routes, int64 [N, S, L, K]; gradients"""
        shape, state = self.shape, self.state
        grads = {
            name.removesuffix(".weight"): torch.zeros(value.shape)
            for name, value in state.items()
            if name.endswith(".weight")
        }
        dense = {
            name: Weight(state[f"dense.{name}.weight"].view(size), grads[f"dense.{name}"].view(size))
            for name, size in shape.dense().items()
        }
        sizes = list(shape.expert().items())
        self.experts = [
            [
                tuple(Weight(state[f"{n}.weight"][l, e].view(s), grads[n][l, e].view(s)) for n, s in sizes)
                for e in range(shape.experts)
            ]
            for l in range(shape.layers)
        ]
        self.amax = torch.zeros(shape.layers, shape.experts)
        seen = {
            "losses": torch.zeros(shape.samples, shape.length),
            "outputs": torch.zeros(shape.samples, shape.length, shape.layers, shape.hidden),
        }
        routes = torch.zeros(shape.samples, shape.length, shape.layers, shape.top_k, dtype=torch.int64)
        total = sum(len(sample) - 1 for sample in samples)
        chosen = torch.zeros(shape.layers, shape.experts, dtype=torch.int64)
        for first in range(0, shape.samples, BATCH):
            ids = list(range(first, min(first + BATCH, shape.samples)))
            batch = moe.make_batch(samples, ids)
            done = moe.forward(shape, dense, state["bias"], batch, self._experts, total_tokens=total)
            done.objective.backward()
            at = (torch.tensor(ids)[batch.sample], batch.positions)
            seen["losses"][at] = done.losses
            seen["outputs"][at] = torch.stack([y.float() for y in done.outputs], dim=1)
            routes[at] = torch.stack(done.routes, dim=1)
            for layer, used in enumerate(done.routes):
                chosen[layer] += torch.bincount(used.reshape(-1), minlength=shape.experts)
        moe.update_bias(state["bias"], chosen)
        state["amax"] = torch.cat([self.amax[:, :, None], state["amax"][:, :, :-1]], dim=2)
        state["step"] += 1
        count = int(state["step"][0, 0, 0])
        for name, grad in grads.items():
            master = state[f"{name}.weight" if shape.exact else f"{name}.master"]
            adam(master, grad, state[f"{name}.exp_avg"], state[f"{name}.exp_avg_sq"], count)
            if not shape.exact:
                state[f"{name}.weight"].copy_(master)
        return seen, routes, {f"gradient.{name}": grad for name, grad in grads.items()}

    def _experts(self, layer: int, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        total = torch.zeros(x.shape)
        for e, (fc1, fc2) in enumerate(self.experts[layer]):
            rows = routing.map[:, e].nonzero()[:, 0]
            if len(rows):
                part = x[rows]
                self.amax[layer, e] = torch.maximum(self.amax[layer, e], part.detach().abs().max().float())
                y = moe.expert(part, fc1, fc2)
                total = total.index_add(0, rows, y.float() * routing.probs[rows, e][:, None])
        return total.to(x.dtype)
