"""`python -m tests.fuzz.warm LIST`: runs of one rank, each a fork of one process.

Importing what a rank needs costs seconds, a run of the tiny model one. LIST has a line for each
run: a directory with run.yaml. It leaves output.txt and end.json ({status, seconds}) there; the
status of a run that hangs is null.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.mpi.worlds import import_what_ranks_need

AT_ONCE = 2
LIMIT_S = 120.0


def main() -> None:
    import_what_ranks_need()
    waiting = [Path(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    running: dict[int, tuple[Path, float]] = {}
    late: set[Path] = set()
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            directory = waiting.pop(0)
            child = os.fork()
            if child == 0:
                run(directory)
                return
            running[child] = directory, time.monotonic()
        ended, status = os.waitpid(-1, os.WNOHANG)
        now = time.monotonic()
        if ended:
            directory, begin = running.pop(ended)
            code = None if directory in late else os.waitstatus_to_exitcode(status)
            end = {"status": code, "seconds": now - begin}
            (directory / "end.json").write_text(json.dumps(end))
            continue
        for child, (directory, begin) in running.items():
            if now - begin > LIMIT_S:
                late.add(directory)
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)


def run(directory: Path) -> None:
    """What `python -m verl_hpc train --config run.yaml` does in the directory."""
    os.setsid()
    os.chdir(directory)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, output, output)):
        os.dup2(stream, number)
    from verl_hpc.cli.main import main

    sys.exit(main(["train", "--config", "run.yaml"]))


if __name__ == "__main__":
    main()
