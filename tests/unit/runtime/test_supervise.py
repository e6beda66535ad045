"""What the parent of a rank reports of its end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.waiting import wait_for

PROGRAM = """
import ctypes, faulthandler, os, signal, subprocess, sys, time
from multiprocessing import get_context
from pathlib import Path
from verl_hpc.runtime.debug.stacks import write_stacks_on_signal
from verl_hpc.runtime.stop import Signals
from verl_hpc.runtime.supervise import supervised

run = Path(sys.argv[1])
with supervised(run) as note:
    write_stacks_on_signal(run, 0)
    note.enter("reward")
    {}
"""


def start(tmp_path, body):
    script = tmp_path / "rank.py"
    script.write_text(PROGRAM.format(body))
    return subprocess.Popen(
        [sys.executable, script, tmp_path],
        env={k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(tmp_path, body):
    process = start(tmp_path, body)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("how", ["os._exit", "ctypes.CDLL(None).exit"])
def test_a_rank_that_leaves_without_a_word_has_failed(tmp_path, how, status):
    code, out, err = run(tmp_path, f"{how}({status})")
    assert (code, out) == (status or 1, "")
    assert "verl_hpc: rank 0 on " in err
    assert f"failed in reward: it left with status {status} and no message" in err


def test_a_rank_that_ends_is_left_in_peace(tmp_path):
    assert run(tmp_path, "pass") == (0, "", "")
    assert run(tmp_path, "print('all is said')\nsys.exit(85)") == (85, "all is said\n", "")


def test_a_failure_that_was_told_is_not_told_again(tmp_path):
    code, _, err = run(tmp_path, "raise ValueError('bad')")
    assert (code, err.count("ValueError: bad"), "verl_hpc" in err.splitlines()[-1]) == (1, 1, False)
    assert run(tmp_path, "note.told(); sys.exit(1)") == (1, "", "")
    assert run(tmp_path, "note.told(); os._exit(0)")[0::2] == (1, "")
    assert run(tmp_path, "note.told(); os.kill(os.getpid(), 6)")[0] == -6


ENDS = [
    ("sys.exit(1)", 1, "failed in reward: it left with status 1 and no message"),
    ("pass\nos.abort()", -signal.SIGABRT, "it was ended by SIGABRT"),
    ("os.kill(os.getpid(), 9)", -9, "it was ended by SIGKILL; the node may be out of memory"),
    ("os.close(1); os.close(2); os._exit(0)", 1, "failed in reward"),
    ("subprocess.Popen(['sleep', '600']); os._exit(3)", 3, r"status 3(.|\n)*: sleep \("),
]


@pytest.mark.parametrize(("body", "status", "words"), ENDS)
def test_an_end_without_a_word_of_the_rank_is_told(tmp_path, body, status, words):
    code, _, err = run(tmp_path, body)
    assert code == status
    assert re.search(words, err)


def test_a_crash_in_native_code_is_told_with_its_calls(tmp_path):
    code, _, err = run(tmp_path, "def reward(): faulthandler._sigsegv()\n    reward()")
    assert code == -signal.SIGSEGV
    first, second, *_ = err.strip().splitlines()
    assert first.endswith(" failed in reward: it was ended by SIGSEGV")
    assert second == "Fatal Python error: Segmentation fault"
    assert 'rank.py", line ' in err and "in reward" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signals_are_passed_on(tmp_path, number):
    body = f"""signal.signal({int(number)}, lambda *_: (print("heard"), sys.exit(5)))
    print("ready", flush=True)
    for _ in range(600):  # a signal just before a sleep is heard behind it
        time.sleep(0.1)"""
    process = start(tmp_path, body)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, "heard\n")


def test_a_rank_does_not_outlive_its_parent(tmp_path):
    process = start(tmp_path, "print(os.getpid(), flush=True); time.sleep(600)")
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists())


def test_a_process_that_a_rank_leaves_is_ended_and_named(tmp_path):
    code, out, err = run(tmp_path, "subprocess.Popen(['sh', '-c', 'sleep 600; :']); print('done')")
    assert (code, out) == (0, "done\n")
    names = r"sh \(\d+\), sleep \(\d+\)"
    text = rf"verl_hpc: rank 0 on \S+: processes that it has left are ended: {names}\n"
    assert re.fullmatch(text, err)


def test_a_helper_of_the_package_that_ends_late_is_not_told(tmp_path):
    (tmp_path / "verl_hpc").mkdir()
    (tmp_path / "verl_hpc" / "helper.py").write_text("import time\ntime.sleep(600)\n")
    body = f"subprocess.Popen([sys.executable, '-m', 'verl_hpc.helper'], cwd={str(tmp_path)!r})"
    assert run(tmp_path, f"{body}; time.sleep(0.5)") == (0, "", "")


def test_a_process_that_a_rank_leaves_may_tidy_up_first(tmp_path):
    body = "subprocess.Popen(['sh', '-c', 'trap \"echo bye; exit\" TERM; sleep 600 & wait'])"
    code, out, err = run(tmp_path, body)
    assert (code, out) == (0, "bye\n")
    assert "are ended: sh (" in err


def test_a_process_that_ends_soon_after_its_rank_is_left_in_peace(tmp_path):
    body = "subprocess.Popen(['sh', '-c', 'sleep 0.2; echo late'])"
    assert run(tmp_path, body) == (0, "late\n", "")


def test_orphans_of_a_rank_become_no_zombies(tmp_path):
    body = """subprocess.run(["sh", "-c", "sh -c 'echo $$' &"])
    time.sleep(0.5)
    parent = os.getppid()
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    print(found == [str(os.getpid())])"""
    assert run(tmp_path, body)[1].splitlines()[1] == "True"


def test_a_worker_that_a_rank_forks_can_be_terminated(tmp_path):
    body = """Signals().listen()
    worker = get_context("fork").Process(target=time.sleep, args=(30,))
    worker.start()
    # Some sites warn every process of a job, and a terminal sends Ctrl-C to all.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        os.kill(worker.pid, number)
    worker.join(0.3)
    assert worker.is_alive()
    worker.terminate()
    worker.join()
    print(worker.exitcode)
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    os.kill(os.getpid(), signal.SIGTERM)"""
    assert run(tmp_path, body) == (0, "-15\nset()\n", "")


def test_ctrl_c_is_noted_and_the_second_ends_the_rank(tmp_path):
    body = """signals = Signals(iter([0.0, 0.0, 0.5, 2.0]).__next__)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals.listen()
    for press in range(3):
        os.kill(os.getpid(), signal.SIGINT)
        print(signals.reason, flush=True)"""
    code, out, err = run(tmp_path, body)
    assert (code, out) == (-signal.SIGINT, "signal SIGINT\n" * 2)
    (line,) = err.splitlines()
    assert line.endswith("Ctrl-C again ends at once")
