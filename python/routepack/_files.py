# SPDX-License-Identifier: Apache-2.0
"""Output files, whole or not at all. What the C++ side does in core/file.cc, with the same rules."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from routepack._errors import IoError

_COUNTER = itertools.count()
_MOST_LINKS = 40
#: A descriptor of this process, by name.
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self|%d))/fd/([0-9]{1,9})" % os.getpid())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file. The file behind a symbolic link is replaced, not the link; devices and pipes are written into.

    :raises IoError: path, what was found, what was wanted; whatever was there stays
    """
    _write([(Path(path), data)])


def write_texts(texts: Mapping[str, str]) -> None:
    """Several files as by write_text: every one is complete on disk before the first takes its place.

    :raises IoError: as write_bytes; no file has changed then, unless a rename inside its folder failed
    """
    _write([(Path(path), text.encode("utf-8", "replace")) for path, text in texts.items()])


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """The same with text, as UTF-8 and with its own line ends.

    :raises IoError: as write_bytes
    """
    write_bytes(path, text.encode("utf-8", "replace"))


def make_folder(path: Path) -> None:
    """Makes a folder with those above it, unless it is there.

    :raises IoError: path, what was found, what was wanted
    """
    require_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise IoError(f"{path}: {_said(path, error)}") from None


def require_folder(path: Path) -> None:
    """A folder that can be written, or can be made.

    :raises IoError: path, what was found, what was wanted
    """
    for part in (path, *path.parents):
        try:
            there = part.stat()
        except (FileNotFoundError, NotADirectoryError):
            if part.is_symlink():
                raise IoError(f"{part}: found a link to nothing, wanted a folder") from None
            continue
        except (OSError, ValueError) as error:
            raise IoError(f"{path}: {_said(path, error)}") from None
        if not stat.S_ISDIR(there.st_mode):
            raise IoError(f"{part}: found {_kind(there.st_mode)}, wanted a folder")
        if not os.access(part, os.W_OK | os.X_OK):
            raise IoError(f"{part}: found no permission to write, wanted a folder that can be written")
        return


def require_writable(path: Path) -> None:
    """No directory where a file is to be.

    :raises IoError: path, what was found, what was wanted
    """
    if path.is_dir():
        raise IoError(f"{path}: found a directory, wanted a file to write")


def require_place(path: Path) -> None:
    """A file can be written there, as far as one can know before.

    :raises IoError: path, what was found, what was wanted
    """
    require_writable(path)
    if not path.parent.is_dir():
        raise IoError(f"{path}: {_no_folder(path)}")


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _no_folder(path: Path) -> str:
    return f"found no folder {path.parent}, wanted one to write into"


def _said(path: Path, error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOENT:
        return _no_folder(path)
    if code == errno.ENXIO:
        return "found a pipe or a socket that nobody reads, wanted a file to write"
    why = (error.strerror if isinstance(error, OSError) else None) or str(error) or "an error"
    return f"found {why[0].lower()}{why[1:]}, wanted a file that can be written"


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:  # nothing, or a link to nothing
        return None


def _own_descriptor(path: Path) -> int | None:
    """The number behind names such as /dev/stdout: opened again, a file would be written from its beginning."""
    name = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        if found := _DESCRIPTOR.fullmatch(name):
            return int(found[1])
        try:
            name = os.path.normpath(os.path.join(os.path.dirname(name), os.readlink(name)))
        except OSError:
            return None
    return None


def _behind_links(path: Path) -> Path:
    """A rename would replace a link instead of the file behind it, which need not exist yet."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return path
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _into_descriptor(descriptor: int, data: bytes) -> None:
    for stream in (sys.stdout, sys.stderr):  # what was printed before comes before
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    _write_all(descriptor, data)


def _into_device(path: Path, data: bytes) -> None:
    """Opening does not wait for a pipe's reader: without one it fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.set_blocking(descriptor, True)
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _write(files: Sequence[tuple[Path, bytes]]) -> None:
    """Stages what can be staged, puts it in place, and then writes into devices and pipes."""
    staged: list[tuple[Path, Path, Path]] = []  # as named, the new file, what it replaces
    path = Path()
    try:
        for path, data in files:
            if (target := _target(path)) is not None:
                staged.append((path, _stage(target, data), target))
        while staged:
            path, scratch, target = staged[0]
            os.replace(scratch, target)
            staged.pop(0)
        for path, data in files:
            if (descriptor := _own_descriptor(path)) is not None:
                _into_descriptor(descriptor, data)
            elif (there := _status(path)) is not None and not stat.S_ISREG(there.st_mode):
                _into_device(path, data)
    except IoError:
        raise
    except (OSError, ValueError) as error:
        raise IoError(f"{path}: {_said(path, error)}") from None
    finally:
        for _, scratch, _ in staged:
            with contextlib.suppress(OSError):
                scratch.unlink()


def _target(path: Path) -> Path | None:
    """The regular file that a new one takes the place of; none for devices and pipes."""
    if _own_descriptor(path) is not None:
        return None
    there = _status(path)
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise IoError(f"{path}: found a directory, wanted a file to write")
    return None if there is not None and not stat.S_ISREG(there.st_mode) else _behind_links(path)


def _stage(target: Path, data: bytes) -> Path:
    """A new file beside `target`, with the permissions of the old one."""
    there = _status(target)
    while True:  # names that a killed process left behind are stepped over: in containers process ids repeat
        scratch = target.parent / f".routepack.{os.getpid()}.{next(_COUNTER)}.tmp"
        try:
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            break
        except FileExistsError:
            continue
    try:
        try:
            if there is not None:
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, stat.S_IMODE(there.st_mode))
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    return scratch
