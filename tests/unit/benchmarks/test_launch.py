"""Starting a measured program."""

import signal

import psutil
import pytest

from benchmarks.launch import run

RANK = "trap 'sleep 1; exit' TERM; echo $$ > {pid_file}; while :; do sleep 0.1; done"


def test_what_a_script_started_has_ended_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # it would stay, for other tests
    pid_file = tmp_path / "pid"
    script = 'bash -c "$0" & wait'
    with pytest.raises(SystemExit, match="no status after 2 s"):
        run(["bash", "-c", script, RANK.format(pid_file=pid_file)], tmp_path / "log", timeout_s=2)
    assert not psutil.pid_exists(int(pid_file.read_text()))
