# SPDX-License-Identifier: Apache-2.0
"""Several output files, all of them or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import routepack


def require_writable(paths: Sequence[str]) -> None:
    """What would stop `write_all` and is known before the work.

    :raises IoError: for a folder, or a file in a folder that is not there
    """
    for path in map(Path, paths):
        if path.is_dir():
            raise routepack.IoError(f"{path}: cannot write: found a folder, wanted a file")
        if not path.parent.is_dir():
            raise routepack.IoError(f"{path}: cannot write: found no folder {path.parent}, wanted it to exist")


def write_all(texts: Mapping[str, str]) -> None:
    """Writes every text beside its file, and only then puts them in place; links stay links, devices devices.

    :raises IoError: with the file; none has changed then, unless a rename between files of one folder fails
    """
    require_writable(list(texts))
    scratch: dict[str, Path] = {}
    path = ""
    try:
        for path, text in texts.items():
            if not _is_special(path):
                scratch[path] = _staged(Path(os.path.realpath(path)), text)
        for path, text in texts.items():
            if path in scratch:
                scratch[path].replace(os.path.realpath(path))
            else:
                Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise routepack.IoError(f"{path}: cannot write: {error.strerror or error}") from None
    finally:
        for left in scratch.values():
            left.unlink(missing_ok=True)


def _is_special(path: str) -> bool:
    """Whether there is something that is no regular file, such as a pipe or /dev/stdout."""
    return os.path.exists(path) and not os.path.isfile(path)


def _staged(path: Path, text: str) -> Path:
    """The text in a new file beside `path`, with the rights of a file that is written anew."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)
