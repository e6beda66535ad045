"""A process that forks others, and its end."""

import subprocess
import sys

MISSES_ONE = """
import os, socket, time
from verl_hpc.runtime import processes
from verl_hpc.runtime import helper_process

ours, its = socket.socketpair()
for _ in range(2):
    mine, other = socket.socketpair()
    socket.send_fds(ours, [b"."], [other.fileno()])
ours.close()
helper_process.serve(its, lambda patron: time.sleep(300))

below, looks = processes.below, []

def misses_one(root, most):
    looks.append(below(root, most))
    return looks[-1][:1] if len(looks) == 1 else looks[-1]

processes.below = misses_one
assert processes.end_all(os.getpid())
assert len(looks[0]) == 2, looks
"""


def test_one_that_starts_while_others_are_ended_is_ended_too():
    """It is not there when they are looked for; waiting for it would take as long as it runs."""
    subprocess.run([sys.executable, "-c", MISSES_ONE], check=True, timeout=30)


def test_one_whose_patron_leaves_without_reading_ends_without_a_word():
    """A rank leaves so that finds something wrong with the configuration meanwhile."""
    program = (
        "import socket\n"
        "from verl_hpc.runtime import helper_process\n"
        "ours, its = socket.socketpair()\n"
        "its.sendall(b'ready')\n"
        "ours.close()\n"
        "helper_process.serve(its, lambda patron: None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
