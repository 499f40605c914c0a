# SPDX-License-Identifier: Apache-2.0
"""What the repository promises about itself: arrows between folders, licence lines, nothing fetched, no traces."""

import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_OURS = {".git", ".venv", "build", "__pycache__", ".pytest_cache", ".mypy_cache", ".cache", ".hypothesis"}

# What each folder of src/ may include besides itself and the public headers (HACKING.md has the picture).
BELOW = {
    "core": set(),
    "exec": {"core"},
    "window": {"core"},
    "cost": {"core", "exec", "window"},
    "placement": {"core", "exec", "window", "cost"},
    "packing": {"core", "exec", "window", "cost"},
    "verify": {"core"},
    "comm": {"core"},
    "transfer": {"core", "comm"},
    "plan": {"core", "exec", "window", "cost", "placement", "packing"},
    "simulate": {"core", "cost"},
    "cli": {"core", "exec", "window", "cost", "placement", "packing", "plan", "simulate", "comm",
            "transfer"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def files(*suffixes: str, under: str = ".") -> list[pathlib.Path]:
    found = []
    for folder, folders, names in os.walk(ROOT / under):
        folders[:] = sorted(f for f in folders if f not in NOT_OURS)
        found += [pathlib.Path(folder) / name for name in sorted(names) if not suffixes or name.endswith(suffixes)]
    return found


def name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_comments_and_strings(text: str) -> str:
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.DOTALL)


def project_includes(text: str) -> list[str]:
    return [target for quote, target in INCLUDE.findall(text) if quote == '"']


def wrong_includes(path: str, text: str) -> list[str]:
    """Includes of a file of ours (path relative to the root) that point up or sideways."""
    parts = path.split("/")
    wrong = []
    for target in project_includes(text):
        folder = target.split("/")[0]
        if path.startswith("include/"):
            allowed = folder == "routepack"
        else:
            room = parts[1]
            allowed = folder in {"routepack", room} or folder in BELOW[room]
        if not allowed:
            wrong.append(f"{path} includes {target}")
    wrong += [f"{path} includes <{t}>" for q, t in INCLUDE.findall(text) if q == "<" and t.startswith("routepack/")]
    return wrong


def test_the_arrow_check_sees_a_wrong_include():
    assert wrong_includes("src/verify/x.cc", '#include "cost/score.h"\n')
    assert wrong_includes("src/core/x.h", '#include "window/safetensors.h"\n')
    assert wrong_includes("include/routepack/x.h", '#include "core/json.h"\n')
    assert wrong_includes("src/plan/x.cc", '#include "cli/options.h"\n')
    assert wrong_includes("src/exec/x.h", '#include "window/window_file.h"\n')
    assert wrong_includes("src/packing/search/x.cc", '#include "placement/slots.h"\n')
    assert not wrong_includes("src/plan/x.cc", '#include "routepack/plan.h"\n#include "packing/rows.h"\n')


def test_every_folder_of_src_has_its_place_in_the_arrows():
    assert {p.name for p in (ROOT / "src").iterdir() if p.is_dir()} <= set(BELOW)


def test_includes_point_down_only():
    sources = files(".cc", ".h", under="src") + files(".h", under="include")
    assert sources
    assert [w for path in sources for w in wrong_includes(name(path), path.read_text(encoding="utf-8"))] == []


PRINTS_OR_EXITS = re.compile(
    r"\bstd::(cout|cerr|clog|cin|exit|abort|quick_exit|_Exit|terminate)\b|\b(printf|fprintf|puts|fputs|perror|putchar)\s*\("
    r"|(?<![\w.>:])(exit|abort)\s*\(|\bfmt::print\b|#\s*include\s*<iostream>")


def test_the_print_check_sees_a_print():
    for bad in ("std::cout << 1;", "fmt::print(x);", "exit(1);", "std::abort();", "fprintf(stderr, x);"):
        assert PRINTS_OR_EXITS.search(bad), bad
    for good in ("snapshot.exit_code", "fmt::format(x)", "std::snprintf(b, 1, x)", "can_abort(x)"):
        assert not PRINTS_OR_EXITS.search(good), good


def test_nothing_below_the_command_line_prints_or_exits():
    wrong = []
    for path in files(".cc", ".h", under="src") + files(".h", under="include"):
        if name(path).startswith("src/cli/"):
            continue
        code = without_comments_and_strings(path.read_text(encoding="utf-8"))
        wrong += [f"{name(path)}: {match.group(0)}" for match in PRINTS_OR_EXITS.finditer(code)]
    assert wrong == []


SOLVER_CALLS = re.compile(
    r"\b(evaluate|lower_bounds|make_plan|place_lpt|pack_first_fit_decreasing|check_record|rank_demand|rank_demand_cv"
    r"|aggregate_demand|count_moves|list_moves|fewest_swaps|bytes_of_expert|make_plans|gap_to|aligned_cell|aligned_length|usable_capacity)\s*\(")


def test_the_verifier_calls_no_code_of_the_solver():
    sources = files(".cc", ".h", under="src/verify")
    assert sources
    wrong = []
    for path in sources:
        code = without_comments_and_strings(path.read_text(encoding="utf-8"))
        wrong += [f"{name(path)}: {match.group(1)}" for match in SOLVER_CALLS.finditer(code)]
    assert wrong == []


def text_files() -> list[tuple[pathlib.Path, str]]:
    found = []
    for path in files():
        if path.suffix in (".safetensors", ".pt", ".xz", ".png") or "corpus" in path.parts:
            continue
        try:
            found.append((path, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            pytest.fail(f"{name(path)} is not UTF-8 text")
    return found


def test_every_source_has_a_licence_line():
    sources = [p for p in files(".cc", ".h", ".py", ".sh", ".cmake", ".toml")
               if "corpus" not in p.parts]
    sources += [p for p in files() if p.name in {"CMakeLists.txt", "Makefile", "run", ".clang-tidy"}]
    assert len(sources) > 30
    lines = ("// SPDX-License-Identifier: Apache-2.0", "# SPDX-License-Identifier: Apache-2.0")
    without = [name(p) for p in sources
               if not any(line in lines for line in p.read_text(encoding="utf-8").split("\n")[:2])]
    assert without == []


def test_nothing_is_fetched_at_build_time():
    forbidden = re.compile(r"FetchContent|ExternalProject|file\s*\(\s*DOWNLOAD|CPMAddPackage", re.IGNORECASE)
    wrong = [name(p) for p in files("CMakeLists.txt", ".cmake", "CMakePresets.json")
             if forbidden.search(p.read_text(encoding="utf-8"))]
    assert wrong == []


# In pieces, so that this file does not hit itself.
HOSTS = re.compile("|".join(map(re.escape, [
    "pypi" + ".org", "pythonhosted" + ".org", "deb.debian" + ".org", "snapshot.debian" + ".org", "pkg" + ".dev",
    "archive.ubuntu" + ".com", "index" + "-url"])))
PLACES = re.compile("|".join(["/" + p + r"/[\w.-]" for p in ("home", "root", "work", "Users", "mnt", "opt")] +
                             ["/" + "tmp" + r"/[\w.-]"]))


def test_no_file_names_a_registry_host_or_a_place_on_a_machine():
    wrong = []
    for path, text in text_files():
        if path == pathlib.Path(__file__).resolve() or path.name == "LICENSE":
            continue
        for pattern in (HOSTS, PLACES):
            wrong += [f"{name(path)}: {m.group(0)}" for m in pattern.finditer(text)
                      if not re.search(r"[\w}$.]$", text[:m.start()])]
    assert wrong == []


def test_links_between_the_pages_lead_somewhere():
    broken = []
    for path in files(".md"):
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{name(path)} -> {target}")
    assert broken == []
