"""Files of a run are replaced whole, by nothing but a regular file."""

import os

import pytest

from verl_hpc.config.regular_file import make_directory, replace_file, replace_text


@pytest.mark.parametrize("kind", ["nothing", "file", "link", "pipe"])
def test_whatever_has_the_name_is_replaced(tmp_path, kind):
    path, other = tmp_path / "a.json", tmp_path / "other"
    other.write_text("other")
    if kind == "file":
        path.write_text("old")
    if kind == "link":
        path.symlink_to(other)
    if kind == "pipe":
        os.mkfifo(path)
    replace_text(path, "new")
    assert path.read_text() == "new"
    assert not path.is_symlink()
    assert other.read_text() == "other"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.json", "other"]


def test_the_old_file_stays_where_the_new_one_fails(tmp_path):
    path = tmp_path / "a.json"
    with replace_file(path, ["o"]) as file:
        file.write("ld")

    def lines():
        yield "half"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_file(path, lines(), durable=True)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_directory_that_is_a_link_is_not_taken(tmp_path):
    (tmp_path / "real").mkdir()
    make_directory(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="is a link"):
        make_directory(tmp_path / "link")
