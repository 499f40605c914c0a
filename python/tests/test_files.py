# SPDX-License-Identifier: Apache-2.0
"""Output files of the Python subcommands: whole or not at all, links and pipes stay, messages name the user's path."""

from __future__ import annotations

import os
import stat
import threading

import pytest

import routepack
from routepack._files import make_folder, require_folder, write_bytes, write_text
from routepack.report import images


def test_the_file_behind_a_link_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_text("old")
    (tmp_path / "second").symlink_to("far/file")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "new").symlink_to("far/fresh")
    for name, target in (("first", "file"), ("new", "fresh")):
        write_text(tmp_path / name, "text\r\n")
        assert (tmp_path / name).is_symlink() and (tmp_path / "far" / target).read_bytes() == b"text\r\n"
    assert sorted(os.listdir(tmp_path / "far")) == ["file", "fresh"]


def test_a_pipe_stays_a_pipe_and_gets_the_bytes(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a reader is there before the writer
    os.set_blocking(descriptor, True)
    data = os.urandom(1 << 18)  # more than a pipe holds

    def read() -> None:
        with open(descriptor, "rb") as file:
            got.append(file.read())

    reader = threading.Thread(target=read)
    write_end = os.open(pipe, os.O_WRONLY)  # the reader sees no end before the writer is there
    reader.start()
    write_bytes(pipe, data)
    os.close(write_end)
    reader.join(30)
    assert got == [data] and stat.S_ISFIFO(pipe.stat().st_mode) and os.listdir(tmp_path) == ["pipe"]
    with pytest.raises(routepack.IoError, match="pipe: found a pipe or a socket that nobody reads, wanted a file"):
        write_bytes(pipe, b"x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_to_a_device_stays(tmp_path):
    master, slave = os.openpty()
    (tmp_path / "terminal").symlink_to(os.ttyname(slave))
    write_bytes(tmp_path / "terminal", b"hello")
    assert os.read(master, 100) == b"hello" and stat.S_ISCHR((tmp_path / "terminal").stat().st_mode)
    assert os.listdir(tmp_path) == ["terminal"]
    os.close(master)
    os.close(slave)


def test_a_descriptor_is_written_where_it_stands(tmp_path):
    with open(tmp_path / "log", "wb") as file:
        file.write(b"before ")
        file.flush()
        write_bytes(f"/dev/fd/{file.fileno()}", b"between ")
        file.write(b"after")
    assert (tmp_path / "log").read_bytes() == b"before between after"


def test_permissions_are_kept_and_new_files_follow_the_mask(tmp_path):
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(0o640)
    mask = os.umask(0o027)
    try:
        write_bytes(tmp_path / "old", b"x")
        write_bytes(tmp_path / "new", b"x")
    finally:
        os.umask(mask)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "new")] == [0o640, 0o640]


def refused(path, write=write_bytes):
    with pytest.raises(routepack.IoError) as caught:
        write(path, b"x")
    message = str(caught.value)
    assert message.startswith(f"{path}: found ") and ", wanted " in message
    assert "\n" not in message and ".tmp" not in message and "Errno" not in message
    return message


def test_what_cannot_be_written_is_named_as_the_user_did(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    (tmp_path / "round").symlink_to("round")
    assert "found a directory, wanted a file to write" in refused(tmp_path / "folder")
    assert f"found no folder {tmp_path / 'gone'}" in refused(tmp_path / "gone" / "x")
    assert "not a directory" in refused(tmp_path / "file" / "x")
    assert "symbolic links" in refused(tmp_path / "round")
    assert "name too long" in refused(tmp_path / ("x" * 300))
    refused(tmp_path / "x\0y")
    assert "found a file, wanted a folder" in refused(tmp_path / "file", lambda path, _: make_folder(path))
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "round"] and (tmp_path / "file").read_text() == "old"


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "write", full)
    assert "found no space left on device" in refused(tmp_path / "file")
    monkeypatch.undo()
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_folder_is_looked_at_before_it_is_made(tmp_path):
    require_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_pictures_with_names_that_no_font_has_say_nothing(tmp_path, recwarn):
    pytest.importorskip("matplotlib")
    (tmp_path / "words.svg").symlink_to("behind.svg")
    images.draw({"words": lambda figure: figure.subplots().set_title("窓 𒀀")}, tmp_path, "")
    assert [str(warning.message) for warning in recwarn] == []
    assert (tmp_path / "words.svg").is_symlink() and (tmp_path / "behind.svg").stat().st_size > 1000
