"""A rank ends, whatever threads are left."""

import os
import re
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


def run(seconds, **environment):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seconds=seconds)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


def test_a_thread_without_an_end_is_named_and_left():
    done = run(600)
    assert (done.returncode, done.stdout) == (85, "done\n")
    assert done.stderr == "verl_hpc: done; threads that still run are ended: judge\n"


def test_the_line_has_the_time_where_ranks_have_logs():
    done = run(600, VERL_HPC_ATTEMPT="/runs/run/job/attempts/0")
    assert re.match(r"[\d-]{10}T[\d:]{8} verl_hpc: done; threads", done.stderr)


def test_a_thread_that_ends_in_time_is_waited_for():
    done = run(0.05)
    assert (done.returncode, done.stdout, done.stderr) == (85, "done\n", "")
