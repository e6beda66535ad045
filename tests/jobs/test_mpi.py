"""Messages between ranks of different nodes arrive while their sender waits for something else.

Ranks of one node hand messages over in shared memory, which needs no sender; here they must not.
"""

import pytest

from tests.jobs.launch import start, succeeds

TWO_NODES = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi"}
# Rank 0 leaves the broadcast with nothing left to do in MPI; rank 1's answer comes by a file.
BODY = """
import sys, time
from pathlib import Path
import numpy as np
from verl_hpc.runtime import mpi
from verl_hpc.runtime.channel import MpiChannel, wait

{before}
comm = mpi.start_mpi(timeout_s=60).COMM_WORLD
number = np.array([7 if comm.rank == 0 else 0])
wait({broadcast})
answer = Path(sys.argv[1])
if comm.rank == 1:
    answer.write_text(str(number[0]))
while not answer.exists():
    time.sleep(0.01)
"""


OURS = "MpiChannel(comm).exchange(*(([], [(0, number)]) if comm.rank else ([(1, number)], [])))"


def run(tmp_path, timeout=120, **parts):
    script, answer = tmp_path / "job.py", tmp_path / "answer"
    script.write_text(BODY.format(**parts))
    succeeds(start(2, [script, answer], **TWO_NODES), timeout=timeout)
    return answer.read_text()


def test_a_message_arrives_though_its_sender_calls_mpi_no_more(tmp_path):
    assert run(tmp_path, before="", broadcast="comm.Ibcast(number).Test") == "7"


def test_the_control_plane_sends_off_what_it_sends(tmp_path):
    """It needs no help of a thread, which here never wakes up."""
    before = "mpi._PROGRESS_INTERVAL_S = 3600"
    assert run(tmp_path, before=before, broadcast=OURS) == "7"


def test_without_either_it_hangs(tmp_path):
    before = "mpi._PROGRESS_INTERVAL_S = 3600"
    with pytest.raises(AssertionError, match="the job hangs"):
        run(tmp_path, 8, before=before, broadcast="comm.Ibcast(number).Test")
