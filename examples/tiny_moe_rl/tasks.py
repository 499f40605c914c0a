# SPDX-License-Identifier: Apache-2.0
"""Two-digit sums and differences, generated: prompts of many lengths, and what an answer is worth."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

ALPHABET = "0123456789+-=;"
END = ALPHABET.index(";")
LONGEST_ANSWER = 4  # three digits and the end
MOST_EXAMPLES = 7


@dataclasses.dataclass(frozen=True)
class Task:
    """`prompt` is solved problems and an open one, «12+34=46;70-25=», and `answer` what belongs there, «45;»."""

    prompt: str
    answer: str


def encode(text: str) -> list[int]:
    """
    >>> encode("7+=;")
    [7, 10, 12, 13]
    """
    return [ALPHABET.index(letter) for letter in text]


def decode(tokens: list[int]) -> str:
    return "".join(ALPHABET[token] for token in tokens)


def make_task(chance: np.random.Generator) -> Task:
    """All problems of a prompt have the same sign, so that prompts differ in the experts they like; 0 to MOST_EXAMPLES
    of them are solved, so that prompts differ in length."""
    plus = bool(chance.integers(2))
    solved = "".join(problem + answer for problem, answer in _problems(chance, plus, _examples(chance)))
    ((problem, answer),) = _problems(chance, plus, 1)
    return Task(solved + problem, answer)


def tasks_of_step(seed: int, step: int, count: int, pool: int) -> list[Task]:
    """The next `count` prompts of a fixed set of `pool`, which is shuffled whenever all have been used. The same on every
    rank, and the same again after a restart."""
    chance = np.random.default_rng(seed)
    tasks = [make_task(chance) for _ in range(pool)]
    places = range(step * count, (step + 1) * count)
    orders = {place // pool: np.random.default_rng([seed, place // pool]).permutation(pool) for place in places}
    return [tasks[orders[place // pool][place % pool]] for place in places]


def fresh_tasks(seed: int, count: int) -> list[Task]:
    """Prompts for a look at what was learnt: not those of the set, but by chance."""
    chance = np.random.default_rng([seed, 99])
    return [make_task(chance) for _ in range(count)]


def reward(task: Task, response: str) -> float:
    """1 for the right answer; 0.1 for a wrong number, and up to 0.2 more by the digits that are right when it has as many
    as it should; 0 for what is no number.

    >>> task = Task("20+25=", "45;")
    >>> [reward(task, said) for said in ("45;", "46;", "460;", "7+;", "4545")]
    [1.0, 0.2, 0.1, 0.0, 0.0]
    """
    if response == task.answer:
        return 1.0
    if not response.endswith(";") or not response[:-1].isdigit():
        return 0.0
    if len(response) != len(task.answer):
        return 0.1
    right = sum(said == wanted for said, wanted in zip(response[:-1], task.answer[:-1]))
    return 0.1 + 0.2 * right / (len(task.answer) - 1)


def _examples(chance: np.random.Generator) -> int:
    """Few mostly, many now and then: lengths in reinforcement learning have a long tail."""
    return min(MOST_EXAMPLES, int(chance.exponential(2.0)))


def _problems(chance: np.random.Generator, plus: bool, count: int) -> list[tuple[str, str]]:
    made = []
    for a, b in chance.integers(10, 100, (count, 2)).tolist():
        if plus:
            made.append((f"{a}+{b}=", f"{a + b};"))
        else:
            a, b = max(a, b), min(a, b)
            made.append((f"{a}-{b}=", f"{a - b};"))
    return made


def worked(chance: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """A prompt with its answer, to learn from: tokens, and which of them belong to an answer."""
    task = make_task(chance)
    text = task.prompt + task.answer
    learn, inside = [], False
    for letter in text:
        learn.append(inside)
        inside = letter == "=" or (inside and letter != ";")
    return np.array(encode(text)), np.array(learn)
