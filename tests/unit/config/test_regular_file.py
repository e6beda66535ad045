"""Files of a run directory are read without waiting for anybody, and without following links."""

import os
from pathlib import Path

import pytest

from verl_hpc.config.regular_file import is_regular, open_regular, read_regular


def num_open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"text")
    assert read_regular(tmp_path / "a") == b"text"
    assert is_regular(tmp_path / "a")
    with open_regular(tmp_path / "a") as file:
        assert file.seek(0, 2) == 4


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "nothing"])
def test_what_is_no_regular_file(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "secret").write_text("secret")
        path.symlink_to(tmp_path / "secret")
    elif kind == "directory":
        path.mkdir()
    before = num_open_files()
    with pytest.raises(OSError, match="x"):
        read_regular(path)
    assert not is_regular(path)
    assert num_open_files() == before
