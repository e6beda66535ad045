"""What a failing rank leaves: its variables, and no secrets."""

import os
import pty
import stat
import subprocess
import sys

import pytest

from tests.unit.waiting import within
from verl_hpc.errors import RewardError
from verl_hpc.runtime.debug.post_mortem import REDACTED, PostMortem, describe


class Chatty:
    def __repr__(self):
        return "sesame in a repr"


class Odd:
    @property
    def shape(self):
        raise RuntimeError("the device is lost")


class Tensor:
    shape, dtype, device = (2, 3), "float32", "cpu"


WORDS = {"password": "sesame", "rows": list(range(20)), "deep": [[[[["sesame in the deep"]]]]]}


def inner(api_key, count, words, odd, tensor, long="x" * 9000, copy="from-the-environment!"):
    raise ValueError(f"count = {count}")


def failure():
    try:
        try:
            inner("sesame", 7, WORDS, [Chatty(), Odd()], Tensor())
        except ValueError as error:
            raise RewardError("row 3") from error
    except RewardError as error:
        return error


def test_variables_of_all_calls_of_all_causes(monkeypatch):
    text = describe(failure(), "reward")
    assert text.startswith("failed in reward\n\nValueError: count = 7\n")
    assert text.index("ValueError: count = 7") < text.index("RewardError: row 3")
    assert "in inner\n" in text and "in failure\n" in text
    assert "    count = 7\n" in text
    assert "'rows': <list of 20: 0, 1, 2, 3, 4, 5, 6, 7, ...>" in text
    assert "tensor = <Tensor [2, 3], dtype float32, device cpu>" in text
    assert "Chatty>, <unreadable: RuntimeError>>" in text
    assert "x" * 400 not in text


def test_secrets_are_left_out(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "from-the-environment")
    text = describe(failure(), "reward")
    assert f"    api_key = {REDACTED}\n" in text
    assert f"'password': {REDACTED}" in text
    assert f"copy = '{REDACTED}!'" in text
    assert "sesame" not in text and "from-the-environment" not in text
    message = describe(OSError("403 for from-the-environment"), "x")
    assert message == f"failed in x\n\nOSError: 403 for {REDACTED}\n"


def test_nobody_is_waited_for_to_read_the_report(tmp_path):
    report = PostMortem(tmp_path, 3, 8)
    file = report.write(failure(), "reward")
    file.unlink()
    os.mkfifo(file)
    assert within(5, report.write, failure(), "reward") == file
    assert file.read_text().startswith("failed in reward")


def test_the_file_is_its_owners(tmp_path):
    file = PostMortem(tmp_path, 3, 8).write(failure(), "reward")
    assert file == tmp_path / "post_mortem/rank_00003.txt"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_written_does_not_hide_the_failure(tmp_path):
    (tmp_path / "post_mortem").write_text("")
    assert PostMortem(tmp_path, 0, 1).write(failure(), "reward") is None


PROGRAM = """
import sys
from pathlib import Path
from verl_hpc.runtime.debug.post_mortem import PostMortem
def inner(count):
    raise ValueError("x")
try:
    inner(41)
except ValueError as error:
    PostMortem(Path("."), 0, int(sys.argv[1])).debug(error)
print("went on")
"""


@pytest.mark.parametrize(("size", "opens"), [("1", True), ("2", False)])
def test_pdb_opens_for_one_rank_at_a_terminal(size, opens):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, size]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, b"p count + 1\nq\n")
        said = b""
        while b"went on" not in said:
            said += os.read(ours, 1000)
        assert process.wait(20) == 0
    os.close(ours)
    assert (b"(Pdb)" in said) is opens
    assert (b"42" in said) is opens


def test_without_a_terminal_nothing_opens():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "1"], input="", capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "went on\n"
