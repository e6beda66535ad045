"""The process that keepers of programs are forked from: `python -m verl_hpc.agents.helper FD`.

    helper --fork--> guard --fork--> keeper --exec--> [bubblewrap,] forward.py --> the program

Whichever of guard and keeper is killed, the other one ends the program and clears up; a guard ends
with the helper.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO
from uuid import uuid4

from verl_hpc.agents import forward
from verl_hpc.agents.held import PREFIX, hold, remove_unheld
from verl_hpc.agents.image import hold_image, unpacked
from verl_hpc.agents.programs import Ended, ProgramJob
from verl_hpc.agents.surroundings import ENDPOINT, FORWARDER, ROOT, ROW, bubblewrap, variables
from verl_hpc.rewards.sandbox.containment import HOME, restrict
from verl_hpc.rewards.sandbox.keeper import Started, answer, keep, remove_directory
from verl_hpc.rewards.sandbox.seccomp import filter_program
from verl_hpc.runtime.children import adopt_orphans, end_children, wait_for
from verl_hpc.runtime.helper_process import serve
from verl_hpc.runtime.messages import receive
from verl_hpc.runtime.processes import end_all

_LOOK_EVERY_S = 0.1
_ENDS_WITHIN_S = 30.0
_FORWARDER = 2
"""Threads of the forwarder; bubblewrap adds a process outside the sandbox."""


def guard(place: Path | None, patron: socket.socket) -> None:
    """Have a keeper run what a patron asks for.

    Args:
        place: this node's directory of the image, if it has one.
        patron: socket of the process that asks.
    """
    # Slurm sends it to all processes; the patron's end says when to stop, and to clear up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    adopt_orphans()
    # The keeper makes it, so that one of both is there to remove it.
    directory = f"{tempfile.gettempdir()}/program_{uuid4().hex}"
    keeper = os.fork()
    if keeper == 0:
        answer(ProgramJob, partial(run, directory, place), patron)
        return
    wait_for(keeper)
    end_all(os.getpid())
    remove_directory(directory)


def run(directory: str, place: Path | None, job: ProgramJob, patron: socket.socket) -> Ended:
    """Run one program to its end, and then what scores it; raises as `keep`.

    Args:
        directory: what the program's becomes, if it has none in memory.
        place: this node's directory of the image, if it has one.
        job: the program.
        patron: socket of the process that asked.
    """
    root = Path(job.image) if job.image else None
    if job.image and place is not None:
        root = unpacked(job.image, place)
    if job.scorer is None:
        return _run(directory, job, root, patron, None)
    with tempfile.TemporaryFile() as packed:
        ended = _run(directory, job, root, patron, packed)
        if ended.ending != "exited" or ended.status or ended.message:
            return ended
        of_score = replace(
            job,
            command=job.scorer.command,
            row=job.scorer.row,
            directory=job.scorer.directory,
            paths=[*job.paths, *filter(None, [job.directory])],
            socket=os.devnull,
        )
        scored = _run(directory, of_score, root, patron, packed)
    if scored.ending == "exited" and not scored.status and not scored.message:
        return replace(ended, score=scored.score)
    failure = f"program.score: {scored.message or f'status {scored.status}'}"
    return replace(scored, message=failure, score=None)


def _run(
    directory: str,
    job: ProgramJob,
    root: Path | None,
    patron: socket.socket,
    packed: IO[bytes] | None,
) -> Ended:
    """Run a program to its end.

    Args:
        root: the files of the image.
        packed: what another has left in its home; if it is empty, what this one leaves goes there,
            and it has no score.
    """
    with tempfile.TemporaryFile() as report:
        try:
            starting = _started(directory, job, root, report, packed)
            result = keep(starting, job.limits, patron, _LOOK_EVERY_S)
        finally:
            remove_directory(directory)
        read = os.pread(report.fileno(), 2 * forward.MOST_SCORE_BYTES, 0)
    kind, text = read[:1], read[1:].decode(errors="replace")
    ended = Ended(result.ending, result.status, result.stdout, None, result.wall_s, result.message)
    if result.ending != "exited" or not kind:
        return ended
    return replace(ended, score=text) if kind == forward.GOOD else replace(ended, message=text)


@contextmanager
def _started(
    directory: str, job: ProgramJob, root: Path | None, report: IO[bytes], packed: IO[bytes] | None
) -> Iterator[Started]:
    contained = job.sandbox == "bubblewrap"
    with (
        tempfile.TemporaryFile() as row,
        tempfile.TemporaryFile() as status,
        tempfile.TemporaryFile() as rules,
    ):
        words, fds = [], [report.fileno(), packed.fileno() if packed is not None else -1]
        endpoint, forwarder, home = job.socket, forward.__file__, directory
        if contained:
            rules.write(filter_program(tree=True))
            row.write(job.row.encode())
            for file in (rules, row):
                file.seek(0)
            words = bubblewrap(job, root, status.fileno(), rules.fileno(), row.fileno())
            endpoint, forwarder, home = ENDPOINT, FORWARDER, HOME
        else:
            Path(home).mkdir(mode=0o700)
            Path(home, ROW).write_text(job.row)
        words += [sys.executable, "-I", "-S", "-B", forwarder, endpoint, *map(str, fds)]
        words += [ROOT if root is not None else "", job.directory or home]
        process = subprocess.Popen(
            [*words, *job.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=variables(job, home),
            pass_fds=[*(fd for fd in fds if fd >= 0), *(f.fileno() for f in (status, rules, row))],
            start_new_session=True,
            # This process has one thread.
            preexec_fn=restrict(job.limits, filtered=False, tree=True),
        )
        yield Started(process, status.fileno() if contained else None, _FORWARDER + contained)


def main(patrons: socket.socket) -> None:
    """Serve a rank: it has made the directory TMPDIR, which goes with this process."""
    own, image = Path(tempfile.gettempdir()), receive(patrons)["image"]
    hold(own.name.removeprefix(PREFIX), own.parent)
    remove_unheld(own.parent)
    held = hold_image(image, own.parent) if image else None
    serve(patrons, partial(guard, held.path if held else None))
    # Keepers see that nobody waits for them, and clear up.
    end_children(_ENDS_WITHIN_S)
    remove_directory(str(own))
    if held is not None:
        held.release()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
