"""`mpiexec -n N python -m tests.mpi [pytest options]`: one pytest session on every rank.

Tests run in step on all ranks; rank 0 reports. A failure on any rank ends the job at once, with
that rank's traceback: its peers may be waiting for it.
"""

import sys

import pytest

from verl_hpc.runtime.session import session

# Options of the terminal reporter, which only rank 0 has, mean nothing elsewhere.
SILENT = ["-p", "no:terminal", "-o", "addopts=--import-mode=importlib -p no:cacheprovider"]


def main() -> None:
    with session(collective_timeout_s=240, late_after_s=60, threads_per_rank=1) as here:
        from tests.mpi import plugin

        plugin.session = here
        words = sys.argv[1:]
        chosen = [w for w in words if w == "--slow" or "tests/" in w]
        if not any("tests/" in w for w in chosen):
            words, chosen = [*words, "tests/mpi"], [*chosen, "tests/mpi"]
        options = words if here.world.rank == 0 else [*chosen, *SILENT]
        status = pytest.main([*options, "-p", "tests.mpi.plugin"])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            here.control.comm.Abort(int(status))


if __name__ == "__main__":
    main()
