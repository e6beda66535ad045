"""Times on a rank's lines."""

import io
import logging
import sys

import pytest

from verl_hpc.runtime import log_lines
from verl_hpc.runtime.log_lines import Stamped, stamp_output, stamped

NOW = "2026-11-22T06:30:19"


@pytest.fixture(autouse=True)
def a_clock_that_stands(monkeypatch):
    monkeypatch.setattr(log_lines.time, "strftime", lambda _: NOW)


def test_each_line_has_the_time_however_it_is_written():
    stream = io.StringIO()
    told = Stamped(stream)
    print("step", 1, file=told)
    print("two\nlines", file=told)
    told.write("a ")
    assert told.write("half line") == 9
    told.writelines([" and its end\n", "\n", "last"])
    expected = f"{NOW} step 1\n{NOW} two\n{NOW} lines\n{NOW} a half line and its end\n\n{NOW} last"
    assert stream.getvalue() == expected


def test_the_rest_is_the_streams_own(tmp_path):
    with (tmp_path / "log").open("w") as file:
        told = Stamped(file)
        expected = (file.fileno(), False, file.encoding)
        assert (told.fileno(), told.isatty(), told.encoding) == expected
        told.flush()
    assert told.closed


def test_only_where_ranks_have_a_log_of_their_own(monkeypatch, capsys):
    monkeypatch.delenv("VERL_HPC_ATTEMPT", raising=False)
    before = sys.stdout
    stamp_output()
    assert sys.stdout is before
    assert stamped("a\nb\n") == "a\nb\n"
    monkeypatch.setenv("VERL_HPC_ATTEMPT", "/runs/run/job/attempts/0")
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    stamp_output()
    print("said")
    logging.StreamHandler().emit(logging.makeLogRecord({"msg": "warned"}))
    assert capsys.readouterr() == (f"{NOW} said\n", f"{NOW} warned\n")
    assert stamped("\na\nb\n") == f"\n{NOW} a\n{NOW} b\n"
