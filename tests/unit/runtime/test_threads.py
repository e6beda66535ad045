"""A rank ends, whatever threads are left."""

import subprocess
import sys

PROGRAM = """
import sys, threading, time
from verl_hpc.runtime.threads import end_within

threading.Thread(target=time.sleep, args=({seconds},), name="judge").start()
print("done")
end_within(85, 0.5)
sys.exit(85)
"""


def run(seconds):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seconds=seconds)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_thread_without_an_end_is_named_and_left():
    done = run(600)
    assert (done.returncode, done.stdout) == (85, "done\n")
    assert done.stderr == "verl_hpc: done; threads that still run are ended: judge\n"


def test_a_thread_that_ends_in_time_is_waited_for():
    done = run(0.05)
    assert (done.returncode, done.stdout, done.stderr) == (85, "done\n", "")
