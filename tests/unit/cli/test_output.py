"""Where verbs print: readers that leave, full disks, closed descriptors."""

import io
import os
import subprocess
import sys

import pytest

from tests.unit.cli.status_runs import beat, make_run
from verl_hpc.cli.main import ON_AND_ON, VERBS, main


@pytest.fixture
def verb(monkeypatch, capsys):
    """A verb with standard output at a descriptor: its exit status, and what it says of errors."""

    def call(descriptor, *words):
        with io.TextIOWrapper(io.BufferedWriter(io.FileIO(descriptor, "w"))) as out:
            monkeypatch.setattr(sys, "stdout", out)
            monkeypatch.setattr(sys, "__stdout__", out)
            try:
                status = main(words)
            except SystemExit as ended:
                status = ended.code
            assert sys.stdout is out
        return status, capsys.readouterr().err

    return call


def abandoned():
    """A pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.fixture
def run(here):
    """A run with a line in its log."""
    directory = make_run(here / "runs", "ppo")
    beat(directory, "end", 3, outcome="finished")
    log = directory / "job/attempts/0/n0.log"
    log.parent.mkdir(parents=True)
    log.write_text("0: a line\n")
    return directory


READ = [
    [],
    ["--version"],
    *([name, "--help"] for name in VERBS),
    ["config", "--explain", "optimizer"],
    ["migrate", "--keys", "rollout"],
    ["list"],
    ["status", "ppo"],
    ["logs", "ppo"],
]


def test_a_reader_who_leaves_is_no_error(run, verb):
    for words in READ:
        assert verb(abandoned(), *words) == (0, ""), words


def test_a_full_disk_is_an_error_without_a_traceback(run, verb):
    for words in READ:
        status, told = verb(os.open("/dev/full", os.O_WRONLY), *words)
        assert status == 1, words
        assert told == (
            "OutputError: standard output: No space left on device; what follows is lost: send it "
            "elsewhere\n"
        ), words


def test_what_a_verb_does_is_done_whoever_reads(run, verb, tmp_path):
    for descriptor in (abandoned(), os.open("/dev/null", os.O_WRONLY)):
        page = tmp_path / f"page{descriptor}"
        status, told = verb(descriptor, "budget", "ppo", "--report", str(page))
        assert (status, told, page.exists()) == (0, "", True)
    assert verb(abandoned(), "logs", "ppo", "--first-error")[0] == 1, "there is none"


@pytest.mark.parametrize("words", [["logs", "ppo", "--follow"], ["status", "ppo", "--watch"]])
def test_a_verb_that_waits_for_news_ends_with_its_reader(run, words):
    """Also where there is no news."""
    assert words[0] in ON_AND_ON
    beat(run, "reward", 3)
    command = [sys.executable, "-m", "verl_hpc", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdout.close()
        try:
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
        assert process.stderr.read() == b""


def test_processes_with_other_outputs():
    """Python writes once more at its exit, and has no stream where a descriptor is closed."""
    for words, status in (
        ("--help | head -1", 0),
        ("--help >/dev/full", 1),
        ("config --help >&-", 0),
        ("no_such_verb >&- 2>&-", 2),
    ):
        command = f"set -o pipefail; {sys.executable} -m verl_hpc {words}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert done.returncode == status, (words, done)
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, words
        assert done.stderr.count("\n") == ("full" in words), words
