"""Files are there whole or not at all, links are not followed, and what is kept is private."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cases.cli_cases import mode

from silomix.model.files import private_folder, read_file, replace_file, whole_file

pytestmark = pytest.mark.usefixtures("usual_umask")


posix = pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")


@posix
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("private", "expected"), [(True, 0o600), (False, 0o644)])
def test_who_may_open_a_file(tmp_path, alone, private, expected):
    path = tmp_path / "file"
    replace_file(path, b"one", alone=alone, private=private)
    assert mode(path) == expected
    path.chmod(0o666)
    replace_file(path, b"two", alone=alone, private=private)
    assert (mode(path), path.read_bytes()) == (expected, b"two")


@posix
def test_a_private_folder(tmp_path):
    private_folder(tmp_path / "above" / "kept")
    assert mode(tmp_path / "above" / "kept") == 0o700
    (tmp_path / "shared").mkdir()
    private_folder(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o755


def test_a_link_in_the_place_of_the_scratch_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".file.partial").symlink_to(victim)
    replace_file(tmp_path / "file", b"new", alone=True)
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_what_a_killed_writer_left_is_used_up(tmp_path):
    (tmp_path / ".file.partial").write_bytes(b"half")
    replace_file(tmp_path / "file", b"new", alone=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("alone", [True, False])
def test_a_writer_that_fails_leaves_what_was_there(tmp_path, alone):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), whole_file(path, alone=alone) as file:
        file.write(b"ne")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_read_as_far_as_asked(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 3) == b"123"
    assert read_file(tmp_path / "file", 100) == b"12345"
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path, 1)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX's")
def test_nobody_waits_for_a_pipe_or_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(OSError, match="it is not a file but a pipe or a device"):
            read_file(path, 1)
