"""Ranks that are forks of one process: they end as ranks of mpiexec do."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.jobs import launch
from tests.jobs.conftest import ppo

BODY = """
import os, signal, sys, threading, time
from pathlib import Path
os.environ["IMPORTED_BY"] = str(os.getpid())
{before}
from verl_hpc.runtime.forked_ranks import start_ranks

status = start_ranks(2)
if status is not None:
    sys.exit(status)
from verl_hpc.runtime.mpi import start_mpi

comm = start_mpi(60).COMM_WORLD
notes = Path(sys.argv[1])
(notes / f"rank{{comm.rank}}").write_text(
    f"{{os.getpid()}} {{os.environ['PMI_RANK']}} {{os.environ['IMPORTED_BY']}}"
)
{body}
"""
WAIT = "[time.sleep(0.1) for _ in range(6000)]"
"""In short ones: a signal that comes just before a call of Python interrupts none."""


def start(tmp_path, body, before="", **options):
    script = tmp_path / "job.py"
    script.write_text(BODY.format(before=before, body=body))
    return subprocess.Popen(
        [sys.executable, script, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,
    )


def ranks(tmp_path, job):
    """Processes of the ranks, once both have MPI."""
    files = [tmp_path / f"rank{rank}" for rank in range(2)]
    assert launch.wait_until(lambda: all(f.exists() and f.read_text() for f in files), job, 60)
    return [int(file.read_text().split()[0]) for file in files]


def ended(process):
    """Whether it is gone, or about to be reaped."""
    try:
        return "State:\tZ" in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True


def processes_of(job):
    """All that a job has started, and what those have."""
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in processes if job.pid in launch.ancestors(process)]


def wait_for_all(processes):
    """Whether all have ended after a while."""
    deadline = time.monotonic() + 20
    while not all(map(ended, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return all(map(ended, processes))


def test_ranks_meet_and_share_what_was_imported(tmp_path):
    job = start(tmp_path, "assert comm.allreduce(comm.rank + 1) == 3")
    status, output = launch.finish(job, 20)
    assert (status, output) == (0, "")
    said = [(tmp_path / f"rank{rank}").read_text().split() for rank in range(2)]
    processes, numbers, importers = zip(*said, strict=True)
    assert len({*processes, str(job.pid)}) == 3
    assert numbers == ("0", "1")
    assert importers == (str(job.pid), str(job.pid))


@pytest.mark.parametrize(
    ("end", "status"),
    [("os._exit(4)", 4), ("comm.Abort(5)", 5), ("os.kill(os.getpid(), signal.SIGKILL)", 9)],
)
def test_one_rank_ends_and_takes_the_other_with_it(tmp_path, end, status):
    # The other has written its note, too, by the time that one ends.
    job = start(tmp_path, f"comm.Barrier()\nif comm.rank == 1: {end}\n{WAIT}")
    alive = ranks(tmp_path, job)
    found, output = launch.finish(job, 20)
    assert found == status, output
    assert all(map(ended, alive))


STAYS = """
import os, sys, time
from verl_hpc.runtime import stand_in
os._exit = lambda code: time.sleep(600)
stand_in.main()
"""


def test_the_channel_of_a_rank_closes_before_its_process_ends():
    """Hydra, which reaps a process when its output closes, may otherwise let the others run."""
    ours, channel = socket.socketpair()
    with ours, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind("")  # a name that the kernel chooses
        door.listen(1)
        job = subprocess.Popen(
            [sys.executable, "-c", STAYS, door.getsockname()[1:].decode()],
            env=os.environ | {"PMI_FD": str(channel.fileno())},
            pass_fds=[channel.fileno()],
            stdin=subprocess.DEVNULL,
        )
        try:
            channel.close()
            line, _ = door.accept()
            for descriptor in socket.recv_fds(line, 16, 4)[1]:
                os.close(descriptor)
            line.send(str(os.getpid()).encode())
            line.send(b"4")
            ours.settimeout(60)
            assert ours.recv(1) == b""
            assert job.poll() is None
        finally:
            job.kill()
            job.wait()


def test_a_status_after_finalize_ends_no_other_rank(tmp_path):
    ends = "from verl_hpc.runtime.mpi import stop_mpi\nrank = comm.rank\nstop_mpi()\n"
    after = "if rank == 1: sys.exit(4)\ntime.sleep(2)\n(notes / 'after').touch()"
    job = start(tmp_path, ends + after)
    status, output = launch.finish(job, 60)
    assert status == 4, output
    assert (tmp_path / "after").exists()


def test_a_signal_reaches_all_ranks(tmp_path):
    body = (
        "signal.signal(signal.SIGUSR1, lambda *_: ((notes / f'told{comm.rank}').touch(),"
        " sys.exit()))\n(notes / f'ready{comm.rank}').touch()\n" + WAIT
    )
    job = start(tmp_path, body)
    files = [tmp_path / f"ready{rank}" for rank in range(2)]
    assert launch.wait_until(lambda: all(file.exists() for file in files), job, 60)
    job.send_signal(signal.SIGUSR1)
    launch.succeeds(job, 20)
    assert (tmp_path / "told0").exists()
    assert (tmp_path / "told1").exists()


DEAF = """
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: (notes / f'told{comm.rank}').touch())
(notes / f'ready{comm.rank}').touch()
deadline = time.monotonic() + 600
while time.monotonic() < deadline:
    time.sleep(1)
"""


@pytest.mark.parametrize(
    ("numbers", "status"),
    [((signal.SIGTERM, signal.SIGTERM), 143), ((signal.SIGTERM, signal.SIGINT), 130)],
)
def test_a_second_signal_kills_ranks_that_do_not_leave(tmp_path, numbers, status):
    soon = "import verl_hpc.runtime.forked_ranks as f\nf.ONE_SIGNAL_S = 1.0"
    job = start(tmp_path, DEAF, soon)
    alive = ranks(tmp_path, job)
    try:
        assert launch.wait_until(lambda: len(list(tmp_path.glob("ready*"))) == 2, job, 60)
        job.send_signal(numbers[0])
        job.send_signal(numbers[0])  # as a group's and the one that is passed on
        assert launch.wait_until(lambda: len(list(tmp_path.glob("told*"))) == 2, job, 20)
        time.sleep(1.2)
        assert job.poll() is None
        below = processes_of(job)
        assert len(below) == 6  # mpiexec, its proxy, two ranks and what stands in for them
        job.send_signal(numbers[1])
        left_with, output = launch.finish(job, 20)
    finally:
        job.kill()
    assert left_with == status, output
    assert all(map(ended, alive))
    assert wait_for_all(below)


def test_ctrl_c_ends_ranks(tmp_path):
    # A shell starts what is to run in its background with SIGINT ignored.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    job = start(tmp_path, WAIT, process_group=0, preexec_fn=heeds)
    alive = ranks(tmp_path, job)
    os.killpg(job.pid, signal.SIGINT)
    status, output = launch.finish(job, 60)
    assert status != 0, output
    assert "KeyboardInterrupt" in output
    assert all(map(ended, alive))


def test_a_signal_ends_a_start_under_way(tmp_path):
    """What heeds no signal while it starts ranks."""
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\ntrap '' TERM INT\ntouch {tmp_path}/began\nexec sleep 600\n")
    mpiexec.chmod(0o700)
    job = start(
        tmp_path,
        "",
        f"import verl_hpc.runtime.forked_ranks as f\nf._mpiexec = lambda: {str(mpiexec)!r}",
    )
    assert launch.wait_until((tmp_path / "began").exists, job, 60)
    time.sleep(0.2)
    (other,) = processes_of(job)
    try:
        job.send_signal(signal.SIGTERM)
        status, output = launch.finish(job, 20)
        assert (status, output) == (143, "")
        assert ended(other)
    finally:
        if not ended(other):
            os.kill(other, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_starting_process_is_ended(tmp_path, number):
    job = start(tmp_path, WAIT)
    alive = ranks(tmp_path, job)
    job.send_signal(number)
    launch.finish(job, 20)
    assert wait_for_all(alive)


def test_a_thread_is_found_before_a_fork_would_wait_for_it(tmp_path):
    status, output = launch.finish(
        start(tmp_path, "", f"threading.Thread(target=lambda: {WAIT}, daemon=True).start()"), 60
    )
    assert status == 1
    assert "LaunchError: --ranks: a library has started threads" in output


def processes_that_score(job):
    """Two ranks' processes, those that others are forked from and these, while the job runs."""
    return [p for p in processes_of(job) if b"verl_hpc.rewards.worker" in command(p)]


def command(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def test_processes_that_score_end_with_a_rank_that_is_killed(model, tmp_path):
    config = ppo(model, tmp_path) | {"steps": 1000, "runtime": {"reward_processes": 1}}
    job = launch.start_training(2, launch.write_config(tmp_path / "config.yaml", config))
    try:
        assert launch.wait_until(lambda: len(processes_that_score(job)) == 4, job, 120)
        scorers = processes_that_score(job)
        rank = next(p for p in launch.ancestors(scorers[0]) if job.pid == launch.ancestors(p)[0])
        os.kill(rank, signal.SIGKILL)
        status, output = launch.finish(job, 60)
        assert status != 0, output
        assert wait_for_all(scorers)
    finally:
        job.kill()


def test_a_run_ends_with_the_same_weights_as_below_mpiexec(model, tmp_path):
    steps = []
    for name in ("mpiexec", "forked"):
        directory = tmp_path / name
        directory.mkdir()
        tree = ppo(model, directory) | {"steps": 2}
        config = launch.write_config(directory / "config.yaml", tree)
        if name == "mpiexec":
            launch.succeeds(launch.start(2, ["-m", "verl_hpc", "train", "--config", config]))
        else:
            # Also where processes of the ranks, which are forks, score.
            launch.trained(2, config, "runtime.reward_processes=1")
        steps.append(max((directory / "run/checkpoints").glob("step_*")))
    assert steps[0].name == steps[1].name
    assert launch.differing(*steps) == []
