"""A rank ends, whatever threads are left."""

import os
import re
import subprocess
import sys

PROGRAM = """
import atexit, io, sys, threading, time
from verl_hpc.runtime.threads import end_within

{what}
print("done", flush=True)
end_within(85, 0.5)
sys.exit(85)
"""

THREAD = "threading.Thread(target=time.sleep, args=({},), name='judge').start()"


def run(what, **environment):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(what=what)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


def test_a_thread_without_an_end_is_named_and_left():
    done = run(THREAD.format(600))
    assert (done.returncode, done.stdout) == (85, "done\n")
    assert done.stderr == "verl_hpc: at the end threads still run, and are ended: judge\n"


def test_the_line_has_the_time_where_ranks_have_logs():
    done = run(THREAD.format(600), VERL_HPC_ATTEMPT="/runs/run/job/attempts/0")
    assert re.match(r"[\d-]{10}T[\d:]{8} verl_hpc: at the end threads", done.stderr)


def test_a_thread_that_ends_in_time_is_waited_for():
    done = run(THREAD.format(0.05))
    assert (done.returncode, done.stdout, done.stderr) == (85, "done\n", "")


def test_a_function_of_atexit_without_an_end_is_left():
    done = run("atexit.register(time.sleep, 600)")
    assert (done.returncode, done.stdout) == (85, "done\n")
    text = "a function of atexit, or a process that it waits for, still runs, and is ended"
    assert done.stderr == f"verl_hpc: at the end {text}\n"


def test_streams_that_are_gone_do_not_keep_it():
    done = run(f"{THREAD.format(600)}; sys.stdout = sys.stderr = None")
    assert done.returncode == 85
    assert done.stderr == "verl_hpc: at the end threads still run, and are ended: judge\n"
