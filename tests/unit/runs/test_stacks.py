"""Stacks: from both sources, in groups, from one's own processes."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from tests.unit.programs import program, umask
from tests.unit.waiting import within
from verl_hpc.runs.jobs import record_job
from verl_hpc.runs.ranks import Progress, Ranks, write_ranks
from verl_hpc.runs.stacks import take as stacks_gather
from verl_hpc.runs.stacks.stack import (
    SIGNAL,
    Frame,
    Stack,
    Thread,
    from_faulthandler,
    from_py_spy,
    group,
    stack_file,
)
from verl_hpc.runs.stacks.take import gather_stacks, main, process_state, py_spy, take_here
from verl_hpc.testing.slurm_lab.processes import wait_for

WAIT = Frame("wait", "/x/verl_hpc/runtime/channel.py", 38)
HOST = socket.gethostname()

DUMP = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/threading.py", line 324 in wait
  File "/x/a b, line 3 in.py", line ??? in run

Current thread 0x00007f02 (most recent call first):
  File "/x/reward.py", line 7 in inner
  File "/x/reward.py", line 9 in <module>
"""


def test_faulthandlers_oldest_thread_is_the_main_one():
    main_thread, other = from_faulthandler(DUMP)
    frames = Frame("inner", "/x/reward.py", 7), Frame("<module>", "/x/reward.py", 9)
    assert main_thread == Thread("MainThread", frames)
    assert (other.name, other.frames[1].function) == ("thread 0x00007f01", "run")
    assert other.frames[1] == Frame("run", "/x/a b, line 3 in.py", 0)
    assert from_faulthandler("") == ()


def test_py_spys_main_thread_comes_first():
    calls = [{"name": "f", "filename": "/x.py", "line": 3, "locals": None}]
    seen = [{"thread_name": "dog", "frames": []}, {"thread_name": "MainThread", "frames": calls}]
    threads = from_py_spy(json.dumps(seen))
    assert [thread.name for thread in threads] == ["MainThread", "dog"]
    assert threads[0].frames == (Frame("f", "/x.py", 3),)
    assert from_py_spy("{}") == ()
    for text in ("", "[1]", '[{"thread_name": "a"}]'):
        with pytest.raises(ValueError):
            from_py_spy(text)


def stack(rank, *frames, problem=""):
    threads = (Thread("MainThread", frames),) if frames else ()
    return Stack(rank, "n0", 100 + rank, "signal", threads, problem)


def test_groups_begin_with_the_odd_one_out():
    reward = Frame("score", "/x/reward.py", 7)
    stacks = [
        stack(0, WAIT),
        stack(1, Frame("wait", WAIT.file, 40)),
        stack(2, reward),
        stack(3, reward),
        stack(4, Frame("score", "/x/reward.py", 8)),
        stack(5, problem="gone"),
    ]
    numbers = [[s.rank for s in part] for part in group(stacks)]
    assert numbers == [[4], [2, 3], [0, 1], [5]], "lines of a waiting loop say nothing"
    assert [s.rank for s in group(stacks, late=[3])[0]] == [2, 3]


VICTIM = """
import sys, time
from pathlib import Path
from verl_hpc.runtime.debug.stacks import write_stacks_on_signal
def inner():
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
if sys.argv[2] == "listens":
    write_stacks_on_signal(Path(sys.argv[1]), 3)
inner()
"""


@pytest.fixture
def victim(tmp_path):
    """A process that does what a rank does; `victim(how)` gives its progress."""
    started = []

    def start(how="listens"):
        command = [sys.executable, "-c", VICTIM, str(tmp_path), how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, umask=0o027)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return Progress(3, 1, "reward", 9.0, HOST, process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["py-spy", "signal", "auto"])
def test_a_process_is_looked_at_more_than_once(victim, tmp_path, how):
    if how == "py-spy" and py_spy() is None:
        pytest.skip("py-spy is not installed")
    rank = victim()
    for _ in range(2):
        (found,) = take_here(tmp_path, [rank], how)
        assert found.problem == "" or how == "auto"
        names = [frame.function for frame in found.main]
        assert names == ["inner", "<module>"]
    assert wait_for(lambda: process_state(rank.pid) == "S", 60)


def test_a_group_may_read_stacks_where_the_umask_lets_it(victim, tmp_path):
    victim()
    file = stack_file(tmp_path, 3)
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file)] == [0o750, 0o640]


def test_a_rank_waits_for_nobody_to_read_its_file(victim, tmp_path):
    stack_file(tmp_path, 3).parent.mkdir()
    os.mkfifo(stack_file(tmp_path, 3))
    within(20, victim)
    assert stack_file(tmp_path, 3).is_file()


def test_a_rank_that_has_not_come_so_far_lives_on(victim, tmp_path):
    rank = victim("is deaf")
    (found,) = take_here(tmp_path, [rank], "signal")
    assert "has not opened" in found.problem
    os.kill(rank.pid, SIGNAL)
    time.sleep(0.2)
    assert wait_for(lambda: process_state(rank.pid) == "S", 60)


def stand_in(directory, monkeypatch, name, text):
    """A program of that name on PATH."""
    tools = program(directory / "bin" / name, text).parent
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


def test_tracing_that_is_refused_falls_back_to_the_signal(victim, tmp_path, monkeypatch):
    refusal = "Error: Permission Denied: Try running again with elevated permissions"
    stand_in(tmp_path, monkeypatch, "py-spy", f"echo '{refusal}' >&2\nexit 1\n")
    (found,) = take_here(tmp_path, [victim()])
    assert found.how == "signal"
    assert found.problem.startswith("py-spy: Permission Denied")
    assert found.main[0].function == "inner"


def test_a_rank_that_is_gone_or_of_another_machine_without_a_job(tmp_path):
    process = subprocess.Popen(["true"])
    process.wait()
    (found,) = take_here(tmp_path, [Progress(0, 1, "reward", 9.0, HOST, process.pid)])
    assert found.problem == f"no process {process.pid} on {HOST}: the rank is gone"
    ranks = Ranks(0.0, 10.0, 120.0, None, (Progress(0, 1, "reward", 9.0, "elsewhere", 1),))
    (found,) = gather_stacks(tmp_path, ranks)
    assert found.problem.startswith("not reached: on another machine than")


def test_the_step_that_reaches_other_nodes(tmp_path, monkeypatch):
    """Its srun is a stand-in, which runs the rest of the command as the node n7 would."""
    monkeypatch.setattr(stacks_gather.socket, "gethostname", lambda: "login")
    notes = f'echo "$*" >{tmp_path}/srun\necho $SLURM_CLUSTERS >{tmp_path}/cluster\n'
    runs = 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
    stand_in(tmp_path, monkeypatch, "srun", notes + runs)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    gone = Progress(0, 1, "reward", 9.0, HOST, 2**22 + 1)
    ranks = Ranks(0.0, 10.0, 120.0, "4711", (gone,))
    write_ranks(tmp_path, ranks)
    (tmp_path / "job").mkdir()
    record_job(tmp_path / "job", {"job_id": "4711", "cluster": "c2"})
    with umask(0o027):
        (taken,) = gather_stacks(tmp_path, ranks)
    assert "the rank is gone" in taken.problem
    words = f"--overlap --jobid=4711 --nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist={HOST} "
    assert (
        f"{words}--cpus-per-task=1 --mem=0 --gres=none --mpi=none"
        in (tmp_path / "srun").read_text()
    )
    assert list((tmp_path / "stacks").iterdir()) == []
    assert (tmp_path / "stacks").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "cluster").read_text() == "c2\n"
    refusal = "echo 'srun: error: Invalid job id specified' >&2\nexit 1\n"
    stand_in(tmp_path, monkeypatch, "srun", refusal)
    (taken,) = gather_stacks(tmp_path, ranks)
    assert taken.problem == "not reached: srun: error: Invalid job id specified"
    monkeypatch.setenv("PATH", "/nowhere")
    (taken,) = gather_stacks(tmp_path, ranks)
    assert "srun is not on PATH" in taken.problem


def test_a_node_without_ranks_json(tmp_path, capsys):
    assert main(str(tmp_path), str(tmp_path), "auto") == 1
    assert "has no ranks.json" in capsys.readouterr().err
