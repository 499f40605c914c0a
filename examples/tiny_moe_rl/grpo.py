# SPDX-License-Identifier: Apache-2.0
"""Group-relative policy optimisation: sampling groups, advantages, the clipped objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from model import Cache, ExpertSlots, RunExperts, TinyMoE
from routing import Capture, Routes
from tasks import END, LONGEST_ANSWER, Task, decode, encode, reward


@dataclasses.dataclass
class Rollout:
    """One answer. The last token was sampled and never fed, so it has no route."""

    group: int  # answers to the same prompt compete
    tokens: npt.NDArray[np.int64]  # [n], the prompt and the answer
    prompt_length: int
    routes: Routes  # uint8 [n - 1, L, K], logical experts
    logprobs: npt.NDArray[np.float32]  # [answer], as they were sampled
    reward: float
    right: bool
    reference: npt.NDArray[np.float32] | None = None  # [answer], of the policy of the start, when KL is penalised

    @property
    def length(self) -> int:
        """Tokens that are forwarded in training."""
        return len(self.tokens) - 1


@dataclasses.dataclass(frozen=True)
class Policy:
    """A whole copy of the model, experts in logical order: what samples, and what a reference is."""

    model: TinyMoE
    experts: ExpertSlots
    run_experts: RunExperts


@torch.no_grad()
def sample_group(policy: Policy, task: Task, group: int, size: int, chance: torch.Generator) -> list[Rollout]:
    """`size` answers to a prompt, at temperature 1. The prompt is forwarded once, its routes belong to all."""
    prompt = encode(task.prompt)
    router = Capture(policy.model.shape.top_k)
    cache: Cache = []
    fed = torch.tensor([prompt])
    causal = torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril()
    logits = policy.model(fed, torch.arange(len(prompt)), causal, router, policy.run_experts, cache)[:, -1]
    logits = logits.expand(size, -1)
    routes = [np.repeat(router.take(1), size, axis=0)]
    tokens, logprobs = [], []
    for position in range(len(prompt), len(prompt) + LONGEST_ANSWER):
        scores = logits.log_softmax(-1)
        drawn = torch.multinomial(scores.exp(), 1, generator=chance)
        tokens.append(drawn[:, 0])
        logprobs.append(scores.gather(1, drawn)[:, 0])
        if position == len(prompt) + LONGEST_ANSWER - 1 or all(END in row for row in torch.stack(tokens, 1).tolist()):
            break
        logits = policy.model(drawn, torch.tensor([position]), None, router, policy.run_experts, cache)[:, -1]
        routes.append(router.take(size))
    answers, said_with = torch.stack(tokens, 1), torch.stack(logprobs, 1).numpy()
    all_routes = np.concatenate(routes, axis=1)
    made = []
    for i, answer in enumerate(answers.tolist()):
        answer = answer[: answer.index(END) + 1] if END in answer else answer
        worth = reward(task, decode(answer))
        made.append(
            Rollout(
                group=group,
                tokens=np.array(prompt + answer),
                prompt_length=len(prompt),
                routes=all_routes[i, : len(prompt) + len(answer) - 1].copy(),
                logprobs=said_with[i, : len(answer)].copy(),
                reward=worth,
                right=worth == 1.0,
            )
        )
    return made


@torch.no_grad()
def add_reference(policy: Policy, rollouts: Sequence[Rollout]) -> None:
    """Log-probabilities of the answers under another policy, with its own routes."""
    for rollout in rollouts:
        tokens = torch.from_numpy(rollout.tokens)
        causal = torch.ones(rollout.length, rollout.length, dtype=torch.bool).tril()
        router = Capture(policy.model.shape.top_k)
        logits = policy.model(tokens[None, :-1], torch.arange(rollout.length), causal, router, policy.run_experts)
        scores = logits[0, rollout.prompt_length - 1 :].log_softmax(-1)
        rollout.reference = scores.gather(1, tokens[rollout.prompt_length :, None])[:, 0].numpy()


def advantages(rollouts: Sequence[Rollout]) -> npt.NDArray[np.float32]:
    """Of each answer: how much better than its group, in standard deviations of the group.

    A group whose answers are all worth the same teaches nothing: zero.
    """
    rewards = np.array([rollout.reward for rollout in rollouts])
    groups = np.array([rollout.group for rollout in rollouts])
    found = np.zeros(len(rollouts), dtype=np.float32)
    for group in np.unique(groups):
        of_group = rewards[groups == group]
        found[groups == group] = (of_group - of_group.mean()) / (of_group.std() + 1e-4)
    return found


def token_losses(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    advantage: torch.Tensor,
    clip: float,
    reference: torch.Tensor | None = None,
    kl: float = 0.0,
) -> torch.Tensor:
    """The clipped objective of every answer token, to be minimised; all arguments [tokens].

    `reference` adds `kl` times the estimate exp(d) - d - 1 of the divergence, d = reference - logprobs.
    """
    ratio = (logprobs - old).exp()
    losses = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    if reference is not None and kl:
        d = reference - logprobs
        losses = losses + kl * (d.exp() - d - 1)
    return losses
