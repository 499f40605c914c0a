# SPDX-License-Identifier: Apache-2.0
"""What every refusal of bad input has in common."""
import os

import windowkit
from windowkit import run


def snapshot(folder):
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


def assert_refused(small, arguments, status, *words, template=False):
    """One line on stderr that holds all `words` (a tuple: any of them); nothing on stdout; the outputs as before."""
    small.plan_path.write_text("an older plan")
    before = snapshot(small.out), sorted(os.listdir(small.folder))
    result = run(*arguments, status=status)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("routepack: error: ")
    assert template or len(lines) == 1, result.stderr
    for word in words:
        choices = word if isinstance(word, tuple) else (word,)
        assert any(choice in result.stderr for choice in choices), f"none of {choices} in: {result.stderr}"
    assert (snapshot(small.out), sorted(os.listdir(small.folder))) == before


def assert_window_refused(small, contents, *words):
    path = small.write("bad.safetensors", contents)
    assert_refused(small, ["inspect", path], 2, "bad.safetensors", *words)
    assert_refused(small, small.plan_arguments(window=path), 2, "bad.safetensors", *words)


def damaged(small, change):
    return windowkit.safetensors_bytes(small.tensors, small.metadata, change_header=change)


def with_tensors(small, **changes):
    return windowkit.safetensors_bytes({**small.tensors, **changes}, small.metadata)
