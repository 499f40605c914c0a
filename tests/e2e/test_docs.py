# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md and --help say the same."""

import pathlib
import re
import subprocess

import pytest
import windowkit

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUBCOMMANDS = ("plan", "score", "verify", "inspect", "compare", "generate", "manifest", "transfer", "simulate")
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


def keys_of(value) -> set[str]:
    return value.keys() if isinstance(value, dict) else set()


def test_the_manual_names_every_key_of_a_plan_report(small):
    report = windowkit.run_json(*small.plan_arguments(), "--expert-bytes", 5)
    section = manual().split("## routepack plan", 1)[1].split("\n## ", 1)[0]
    keys = set(report) - {"timings_ms"}
    for key in ("score", "bound", "moves", "placing", "search"):
        keys |= keys_of(report[key])
    assert [key for key in sorted(keys) if f"`{key}`" not in section] == []


def test_the_page_on_formats_names_every_key_of_a_plan_file(small):
    plan = small.make_plan("--two-batches", "--moves", "free", "--expert-bytes", 5)
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    keys = set(plan)
    for key in set(plan) - {"params", "timings_ms"}:
        keys |= keys_of(plan[key])
    assert {"first_batch", "cycles", "same_index"} <= keys
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_the_manual_names_every_parameter_of_the_search(small):
    table = windowkit.run("plan", "--dump-params").stdout.split("[search]\n")[1]
    section = manual().split("### Parameter files", 1)[1].split("\n### ", 1)[0]
    keys = [line.split(" = ")[0] for line in table.splitlines()]
    assert len(keys) > 20
    assert [key for key in keys if f"`{key}`" not in section] == []


def test_the_table_of_efforts_has_their_numbers():
    page = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    efforts = ("paper", "fast", "default", "quality")
    for column, effort in enumerate(efforts):
        dumped = windowkit.run("plan", "--effort", effort, "--dump-params").stdout
        used = dict(line.split(" = ") for line in dumped.split("[search]\n")[1].splitlines())
        for keys in (("seeds",), ("levels",), ("proposals-per-sample",), ("refinements", "repack-share")):
            (row,) = re.findall(rf"^\| {', '.join(f'`{key}`' for key in keys)} \|(.*)\|$", page, re.MULTILINE)
            cell = row.split("|")[column].strip()
            assert [float(number) for number in cell.split(", ")] == [float(used[key]) for key in keys], (effort, keys)


def test_the_readme_names_every_subcommand():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [s for s in SUBCOMMANDS if f"routepack {s}" not in readme] == []


@pytest.mark.parametrize("page", ["README.md", "docs/python-package.md"])
def test_the_packages_that_sources_need_are_those_that_setup_installs(page):
    setup = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
    groups = dict(re.findall(r'^  \[(\w+)\]="(.*)"$', setup, re.MULTILINE))
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"^    g\+\+ .*\n    .*$", text, re.MULTILINE)
    assert set(block.split()) == set(groups["core"].split()) | set(groups["python"].split())
