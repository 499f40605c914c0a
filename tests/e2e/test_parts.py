# SPDX-License-Identifier: Apache-2.0
"""Windows in parts on the command line: a manifest is the window that it names, and says what is wrong with it."""
import json
import os

import numpy as np
import pytest

import windowkit
from refusals import assert_refused
from windowkit import run, run_json

TIMING = """
[expert]
token = 1e-6
[[stage]]
name = "full"
layers = 2
token = 1e-6
pair = 1e-9
"""


def part_of(tensors, first, end):
    return {name: values[first:end] if name != "pad_counts" else values for name, values in tensors.items()}


class Parts:
    """The small window cut in three, with a manifest written by hand in a folder of its own."""

    CUTS = (0, 5, 6, 12)

    def __init__(self, small):
        self.small = small
        self.folder = small.folder / "parts"
        self.folder.mkdir()
        self.files, entries = [], []
        for k, (first, end) in enumerate(zip(self.CUTS, self.CUTS[1:])):
            tensors = part_of(small.tensors, first, end)
            if k == 1:  # other types may lie side by side
                tensors["counts"] = tensors["counts"].astype(np.uint32)
            self.files.append(small.write(f"parts/host{k}.safetensors",
                                          windowkit.safetensors_bytes(tensors, small.metadata)))
            entries.append({"path": f"host{k}.safetensors", "samples": end - first,
                            "fingerprint": run_json("inspect", self.files[-1])["fingerprint"]})
        self.entries = entries
        self.manifest = self.write(entries)

    def write(self, entries, name="parts/manifest.json", **more):
        return self.small.write(name, {"format": "routepack.manifest/1", "parts": entries, **more})


@pytest.fixture
def parts(small):
    return Parts(small)


def without(value, *names):
    """The same without keys of these names, wherever they stand."""
    if isinstance(value, dict):
        return {key: without(inner, *names) for key, inner in value.items() if key not in names}
    return [without(inner, *names) for inner in value] if isinstance(value, list) else value


# Names of files, what depends on the fingerprint, and what the clock decides.
WHERE = ("window", "plan", "fingerprint", "hash", "timings_ms", "admission")


def test_a_manifest_is_planned_and_judged_as_the_window(small, parts):
    whole, own = small.out / "whole.json", small.out / "own.json"
    results = {}
    for window, plan in ((small.window, whole), (parts.manifest, own)):
        run(*small.plan_arguments(window=window, out=plan))
        results[window] = [
            json.loads(plan.read_text()),
            run_json("inspect", window),
            run_json("score", window, plan),
            run_json("verify", window, plan),
            run_json("simulate", window, plan, "--timing", small.write("timing.toml", TIMING)),
        ]
    of_window, of_parts = (without(results[window], *WHERE) for window in (small.window, parts.manifest))
    assert of_parts == of_window
    assert of_parts[3]["accepted"] and of_parts[0]["layout"]
    shown = run_json("inspect", parts.manifest)["fingerprint"]
    assert json.loads(own.read_text())["window"]["fingerprint"] == shown
    others = [small.window, *parts.files]
    assert shown not in [run_json("inspect", other)["fingerprint"] for other in others]


def test_compare_takes_manifests(small, parts):
    sizes = ["--cost", small.cost, "--cap", small.CAP, "--dp", small.DP, "--ep", small.EP, "--effort", "fast"]
    keys = ("placement", "strategy", "joint", "rows")
    entries = [
        [[entry.get(key) for key in keys] for entry in run_json("compare", window, *sizes)["windows"][0]["entries"]]
        for window in (small.window, parts.manifest)
    ]
    assert entries[0] == entries[1] and len(entries[0]) > 3


def test_paths_are_relative_to_the_manifest_and_not_to_where_one_stands(small, parts):
    for folder, name in ((small.folder, "parts/manifest.json"), (parts.folder, "manifest.json"),
                         (small.out, "../parts/manifest.json")):
        assert run_json_in(folder, "inspect", name)["samples"] == 12
    elsewhere = parts.write([{**entry, "path": f"../parts/{entry['path']}"} for entry in parts.entries], "out/m.json")
    absolute = parts.write([{**entry, "path": str(parts.folder / entry["path"])} for entry in parts.entries], "m.json")
    shown = {run_json("inspect", manifest)["fingerprint"] for manifest in (parts.manifest, elsewhere, absolute)}
    assert len(shown) == 1


def run_json_in(folder, *arguments):
    return json.loads(run(*arguments, "--json", cwd=folder).stdout)


def test_a_plan_for_the_undivided_window_is_foreign_and_the_reason_is_said(small, parts):
    plan = small.write("whole.json", small.make_plan())
    own = small.folder / "own.json"
    run(*small.plan_arguments(window=parts.manifest, out=own))
    for window, foreign in ((parts.manifest, plan), (small.window, own)):
        for command in ("score", "verify"):
            assert_refused(small, [command, window, foreign], 2, foreign.name, "window.fingerprint: found xxh3:",
                           "the plan is for another window")


def test_several_manifests_share_a_placement(small, parts):
    copy = parts.write(parts.entries, "parts/again.json")
    folder = small.folder / "plans"
    run(*small.plan_arguments(window=parts.manifest, out=folder), copy, "--one-placement")
    plans = [json.loads((folder / f"{name}.plan.json").read_text()) for name in ("manifest", "again")]
    assert plans[0]["physical_to_logical"] == plans[1]["physical_to_logical"]
    assert plans[0]["window"] == plans[1]["window"]


# The subcommand that writes manifests.


def test_window_files_become_the_parts_of_a_window(small, parts):
    manifest = small.out / "m.json"
    made = run_json("manifest", *parts.files, "-o", manifest)
    written = json.loads(manifest.read_text())["parts"]
    assert written == [{**entry, "path": f"../parts/{entry['path']}"} for entry in parts.entries]
    assert (made["parts"], made["samples"]) == (3, 12)
    assert made["fingerprint"] == run_json("inspect", parts.manifest)["fingerprint"]
    shown = run("manifest", "host0.safetensors", "host1.safetensors", "host2.safetensors", "-o", "again.json",
                cwd=parts.folder).stdout  # fmt: skip
    assert made["fingerprint"] in shown and "3 parts" in shown
    assert json.loads((parts.folder / "again.json").read_text())["parts"] == parts.entries


def test_what_cannot_be_a_part_is_refused(small, parts):
    new = small.folder / "new.json"
    first, second = parts.files[:2]
    for files, out, words in (
        ([parts.manifest], new, ("manifest.json: found a window in parts, wanted a window file",)),
        ([first, small.cost], new, ("cost.toml",)),
        ([first, small.folder / "nothing"], new, ("nothing: cannot open",)),
        ([first, second], second, ("host1.safetensors: found as an output and as the input",)),
        ([first, small.out], new, ("found a directory",)),
        ([], new, ("PART",)),
    ):
        assert_refused(small, ["manifest", *files, "-o", out], 2, *words)
    hostile = os.fsencode(parts.folder) + b"/\xff"
    os.rename(first, hostile)
    assert_refused(small, ["manifest", os.fsdecode(hostile), "-o", new], 2, "not in UTF-8")
    assert not new.exists()


# What would be lost.


def test_no_output_takes_the_place_of_a_part(small, parts):
    before = {path: path.read_bytes() for path in [*parts.files, parts.manifest]}
    good = small.folder / "good.json"
    run(*small.plan_arguments(window=parts.manifest, out=good))
    for path in before:
        assert_refused(small, small.plan_arguments(window=parts.manifest, out=path), 2, path.name, "the input")
        more = [*small.plan_arguments(window=parts.manifest), "--placement-out", path]
        assert_refused(small, more, 2, path.name, "the input")
        trace = ["simulate", parts.manifest, good, "--timing", small.write("timing.toml", TIMING), "--trace", path]
        assert_refused(small, trace, 2, path.name, "the input")
    assert {path: path.read_bytes() for path in before} == before


# Manifests that are wrong.


def refuse(small, manifest, *words):
    assert_refused(small, ["inspect", manifest], 2, *words)
    assert_refused(small, small.plan_arguments(window=manifest), 2, *words)


def test_a_part_that_is_missing_is_named(small, parts):
    parts.files[1].unlink()
    refuse(small, parts.manifest, "host1.safetensors: cannot open for reading: No such file")


def test_another_file_behind_a_name_is_refused(small, parts):
    parts.files[0].replace(parts.files[2])
    refuse(small, parts.manifest, ("host0.safetensors", "host2.safetensors"))
    parts.files[2].replace(parts.files[0])
    small.tensors["lengths"][7] += 1
    tensors = part_of(small.tensors, 6, 12)
    parts.files[2].write_bytes(windowkit.safetensors_bytes(tensors, small.metadata))
    refuse(small, parts.manifest, "host2.safetensors: fingerprint: found xxh3:", "manifest.json says")


def test_parts_that_do_not_fit_each_other_are_refused(small, parts):
    tensors = part_of(small.tensors, 5, 6)
    tensors["groups"] = np.zeros(1, np.int32)
    parts.files[1].write_bytes(windowkit.safetensors_bytes(tensors, small.metadata))
    refuse(small, parts.manifest, "host1.safetensors: groups: found given, wanted absent as in", "host0.safetensors")


@pytest.mark.parametrize("change, words", [
    (lambda m: m.update(format="routepack.manifest/2"), ("version 2",)),
    (lambda m: m.update(format="routepack.plan/1"), ("format", "routepack.manifest/1")),
    (lambda m: m.pop("parts"), ('key "parts" is missing',)),
    (lambda m: m.update(parts=[]), ("parts: found an empty list",)),
    (lambda m: m["parts"][1].update(path="manifest.json"), ("wanted a window file as a part",)),
    (lambda m: m["parts"][1].update(path="."), ("found a directory",)),
    (lambda m: m["parts"][1].update(path="two\nlines"), ("parts[1]: path: found",)),
    (lambda m: m["parts"][1].update(samples=2), ("samples: found 1, wanted 2",)),
    (lambda m: m["parts"][1].update(samples=10**12), ("parts[1]: samples: found the number 1000000000000",)),
    (lambda m: m["parts"][1].update(fingerprint="xxh3:0"), ("parts[1]: fingerprint: found",)),
    (lambda m: m["parts"][1].pop("samples"), ('parts[1]: key "samples" is missing',)),
])  # fmt: skip
def test_a_manifest_with_a_wrong_value_is_refused(small, parts, change, words):
    manifest = json.loads(parts.manifest.read_text())
    change(manifest)
    parts.manifest.write_text(json.dumps(manifest))
    refuse(small, parts.manifest, *words)


@pytest.mark.parametrize("text", [b"{", b'{"format": ', b"[1, 2, 3, 4]", b"\xff" * 20, b"{" * 100_000, b"null    ",
                                  b'{"parts": 1, "parts": 2}'])  # fmt: skip
def test_a_text_that_is_no_manifest_is_refused(small, text):
    refuse(small, small.write("m.json", text), "m.json")


# Generated ones.

SMALL = ["generate", "--model", "gpt-oss-20b", "--prompts", "6", "--rollouts", "2", "--seed", "4"]
SIZES = ["--dp", 4, "--ep", 4, "--cap", 16384, "--effort", "fast"]


def test_a_window_generated_in_parts_is_the_window(tmp_path):
    whole = tmp_path / "whole.safetensors"
    made = run_json(*SMALL, "-o", whole)
    cost = tmp_path / "cost.toml"
    cost.write_text(windowkit.COST)
    run("plan", whole, "-o", tmp_path / "plan.json", "--cost", cost, *SIZES)
    plan = json.loads((tmp_path / "plan.json").read_text())
    for count in (2, 6):
        folder = tmp_path / str(count)
        shown = run_json(*SMALL, "--parts", count, "-o", folder)
        names = [f"part-{k:04}.safetensors" for k in range(count)]
        assert sorted(os.listdir(folder)) == ["manifest.json", *names]
        assert shown["window"] == str(folder / "manifest.json")
        assert without(shown, "window", "fingerprint") == without(made, "window", "fingerprint")
        manifest = json.loads((folder / "manifest.json").read_text())
        assert [part["path"] for part in manifest["parts"]] == names
        assert sum(part["samples"] for part in manifest["parts"]) == 12
        assert run_json("inspect", shown["window"])["fingerprint"] == shown["fingerprint"]
        assert [run_json("inspect", folder / name)["fingerprint"] for name in names] == [
            part["fingerprint"] for part in manifest["parts"]
        ]
        run("plan", shown["window"], "-o", folder / "plan.json", "--cost", cost, *SIZES)
        assert without(json.loads((folder / "plan.json").read_text()), *WHERE) == without(plan, *WHERE)


def test_one_part_is_a_window_file(tmp_path):
    run(*SMALL, "--parts", "1", "-o", tmp_path / "w")
    run(*SMALL, "-o", tmp_path / "x")
    assert (tmp_path / "w").read_bytes() == (tmp_path / "x").read_bytes()


@pytest.mark.parametrize("more, words", [
    (["--parts", 0], ("--parts",)),
    (["--parts", -1], ("--parts",)),
    (["--parts", 10_000], ("--parts",)),
    (["--parts", "two"], ("--parts",)),
    (["--parts", 7], ("parts: found 7, wanted 1 to 6, the prompts",)),
    (["--parts", 2, "--steps", 2], ("--parts and --steps exclude each other",)),
])  # fmt: skip
def test_parts_that_cannot_be_made_are_refused(small, more, words):
    assert_refused(small, [*SMALL, *more, "-o", small.folder / "made"], 2, *words)
    assert not (small.folder / "made").exists()


def test_parts_need_a_folder(small):
    taken = small.write("taken", "a file")
    assert_refused(small, [*SMALL, "--parts", 2, "-o", taken], 2, "taken: wanted a folder for 2 parts")
    assert taken.read_text() == "a file"


def test_a_manifest_can_go_to_standard_output(parts):
    assert '"routepack.manifest/1"' in run("manifest", *parts.files, "-o", "/dev/stdout").stdout


def test_a_manifest_needs_a_name(parts):
    assert "--output is missing" in run("manifest", *parts.files, "-o", "", status=2).stderr


def test_a_manifest_written_through_a_link_names_its_parts_from_where_it_lies(parts, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(elsewhere / "window.json")
    run_json("manifest", *parts.files, "-o", link)
    for path in (link, elsewhere / "window.json"):
        assert run_json("inspect", path)["samples"] == 12
