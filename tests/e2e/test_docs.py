# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md and --help say the same."""

import pathlib
import re
import subprocess

import pytest
import windowkit

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUBCOMMANDS = ("plan", "score", "verify", "inspect", "compare", "generate")
LONG_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


def help_text(*arguments: str) -> str:
    done = subprocess.run([windowkit.EXECUTABLE, *arguments, "--help"], capture_output=True, text=True, check=True)
    return done.stdout


def manual() -> str:
    return (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_help_and_manual_know_every_subcommand(subcommand):
    assert re.search(rf"^\s+{subcommand}\b", help_text(), re.MULTILINE)
    assert f"## routepack {subcommand}" in manual()


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_the_manual_has_every_option_of_a_subcommand_in_its_section(subcommand):
    section = manual().split(f"## routepack {subcommand}", 1)[1].split("\n## ", 1)[0]
    common = manual().split("## Options of every subcommand", 1)[1].split("\n## ", 1)[0]
    options = set(LONG_OPTION.findall(help_text(subcommand)))
    assert options
    assert options - set(LONG_OPTION.findall(section + common)) == set()


def test_the_manual_names_no_option_that_help_does_not_know():
    known = set()
    for arguments in [(), *((s,) for s in SUBCOMMANDS)]:
        known |= set(LONG_OPTION.findall(help_text(*arguments)))
    assert set(LONG_OPTION.findall(manual())) - known == set()


def test_the_readme_names_every_subcommand():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [s for s in SUBCOMMANDS if f"routepack {s}" not in readme] == []
