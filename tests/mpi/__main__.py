"""`mpiexec -n N python -m tests.mpi [pytest options]`: one pytest session on every rank.

Tests run in step on all ranks; rank 0 reports. A failure on any rank ends the job at once, with
that rank's traceback: its peers may be waiting for it.
"""

import os
import sys
from pathlib import Path

import pytest

from verl_hpc.runtime.session import session


def main() -> None:
    with session(collective_timeout_s=240, late_after_s=60, threads_per_rank=1) as here:
        from tests.mpi import plugin

        plugin.session = here
        options = sys.argv[1:]
        if not any(word.startswith("tests/") for word in options):
            options.append("tests/mpi")
        if here.world.rank != 0:
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        status = pytest.main([*options, "-p", "tests.mpi.plugin"])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            here.job.abort(int(status))


if __name__ == "__main__":
    main()
