# SPDX-License-Identifier: Apache-2.0
"""slime's own manager in a real Ray actor: the hook travels there, and what ranks get is the plan."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from routepack.adapters import slime  # noqa: E402

from . import checkouts, contracts  # noqa: E402
from .batches import Batch  # noqa: E402
from .slime_jobs import schedule_of  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def _run(folder: pathlib.Path, how: str) -> tuple[Any, str]:
    """What the ranks got, and what was said."""
    checkout = checkouts.folder(checkouts.SLIME)
    pytest.importorskip("ray", reason="slime's manager is a Ray actor: this test did NOT run")
    batch = Batch()
    (folder / "sitecustomize.py").write_text(
        f"import empty_packages; empty_packages.install({checkouts.WITHOUT_SLIME_NEEDS!r})\n"
        "import sys, importlib.util as u\n"
        f"s = u.spec_from_file_location('tests_adapters', {str(HERE / '__init__.py')!r}, "
        f"submodule_search_locations=[{str(HERE)!r}]); m = u.module_from_spec(s); sys.modules['tests_adapters'] = m\n"
    )
    samples = [
        {
            "tokens": tokens,
            "response_length": response,
            "loss_mask": mask,
            "reward": reward,
            "status": "completed",
            "index": i,
            "rollout_id": i,
            "group_index": i // batch.group,
            "rollout_routed_experts": torch.from_numpy(ids),
            "metadata": {},
        }
        for i, (tokens, response, mask, reward, ids) in enumerate(
            zip(
                batch.tokens(),
                batch.response_lengths(),
                batch.loss_masks(),
                batch.rewards(),
                batch.routes(),
                strict=True,
            )
        )
    ]
    torch.save({"rollout_id": 0, "samples": samples}, folder / "0.pt")
    said = checkouts.run_job("slime_actor_job.py", str(folder), how, paths=[folder, checkout])
    return schedule_of(json.loads((folder / "parts.json").read_text())), said


def test_the_manager_of_a_checkout_ships_the_plan(tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / "own", tmp_path / "plan"]
    for folder in folders:
        folder.mkdir()
    own, _ = _run(folders[0], "OWN")
    made, said = _run(folders[1], "PLAN")
    steps = [set(members) for members in slime.members_of_steps(own)]
    contracts.check_slime_schedule(made, Batch().lengths(), ranks=4, cap=128, steps=steps)
    assert made != own, said[-3000:]
    assert "own packing is used" not in said


def test_the_manager_of_a_checkout_ships_the_placement_to_every_rank(tmp_path: pathlib.Path) -> None:
    _, said = _run(tmp_path, "MOVE")
    told = json.loads((tmp_path / "placements.json").read_text())
    assert "own packing is used" not in said
    assert len(told) == 4 and told[0][0] == 5 and all(one == told[0] for one in told)
    assert all(sorted(row) == list(range(Batch().experts)) for row in told[0][1])
