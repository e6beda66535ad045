"""A stub of PBS: qsub, qstat and pbs_mom of one machine, for there is no OpenPBS to install here.

It does what the scripts of launch/ rely on, as OpenPBS's sources have it: a job gets PBS's
variables and none of the submitter's but those of `qsub -v`, starts in the home directory from a
copy of its script, and leads a session, whose processes all get TERM, and KILL `kill_delay` later,
when the job is deleted or over its limit. Jobs run when a test says so, one after the other, on
hosts that are names alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

_QSTAT = """\
Job Id: {name}
    Job_Name = {title}
    job_state = {state}
    resources_used.walltime = 00:00:00
    Resource_List.select = {select}
    Resource_List.walltime = {walltime}
    substate = 42

"""


class Pbs:
    """A server with its files in a directory, and its one mom.

    Args:
        root: of the queue and the programs.
        path: PATH of jobs, to which the programs of PBS are added.
    """

    def __init__(self, root: Path, path: str) -> None:
        self.root, self.bin, self.queue = root, root / "bin", root / "queue"
        self.home = root / "home"
        for directory in (self.bin, self.queue, self.home):
            directory.mkdir(parents=True)
        self.path = f"{self.bin}:{path}"
        for name in ("qsub", "qstat"):
            self.install(name, f"{sys.executable} {__file__} {root} {name}")

    def install(self, name: str, command: str) -> None:
        """Put a program into every job's PATH."""
        program = self.bin / name
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)

    def qsub(self, script: str | Path, workdir: Path) -> str:
        """Submit as a user does; the job's id."""
        done = subprocess.run(
            ["qsub", str(script)],
            cwd=workdir,
            env={"PATH": self.path},
            executable=self.bin / "qsub",
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def queued(self) -> list[str]:
        """Ids of jobs that wait, oldest first."""
        jobs = sorted(self.queue.glob("*.json"), key=lambda path: int(path.name.split(".")[0]))
        return [path.stem for path in jobs if _read(path)["state"] == "Q"]

    def start(self) -> Job:
        """Run the job that has waited longest."""
        return Job(self, self.queued()[0])


class Job:
    """A job that runs."""

    def __init__(self, pbs: Pbs, name: str) -> None:
        self.file = pbs.queue / f"{name}.json"
        self._job = _read(self.file)
        self._set("R")
        nodefile = self.file.with_suffix(".nodes")
        nodefile.write_text("".join(f"{host}\n" for host in _hosts(self._job["select"])))
        self.output = self.file.with_suffix(".out")
        spooled = self.file.with_suffix(".SC")
        spooled.write_text(self._job["script"])
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                ["/bin/bash", spooled],
                cwd=pbs.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    "HOME": str(pbs.home),
                    "PATH": pbs.path,
                    "PBS_ENVIRONMENT": "PBS_BATCH",
                    "PBS_JOBID": name,
                    "PBS_JOBNAME": self._job["title"],
                    "PBS_NODEFILE": str(nodefile),
                    "PBS_O_WORKDIR": self._job["workdir"],
                    "TMPDIR": str(pbs.root),
                    **self._job["variables"],
                },
            )

    def finish(self, timeout: float = 480) -> tuple[int, str]:
        """Wait for its end; its status and output."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            raise AssertionError(f"the job hangs: {self.output.read_text()}") from None
        self._set("F")
        return status, self.output.read_text()

    def terminate(self, kill_delay: float = 60) -> tuple[int, str]:
        """End the job as qdel and the limit do; its status and output.

        PBS waits 10 s by default, which is too little for a busy machine.
        """
        self._signal(signal.SIGTERM)
        return self.finish(kill_delay)

    def _signal(self, number: int) -> None:
        for directory in Path("/proc").iterdir():
            try:
                if directory.name.isdigit() and os.getsid(int(directory.name)) == self.process.pid:
                    os.kill(int(directory.name), number)
            except ProcessLookupError:
                continue

    def _set(self, state: str) -> None:
        self._job["state"] = state
        self.file.write_text(json.dumps(self._job))


def _hosts(select: str) -> list[str]:
    """What $PBS_NODEFILE has for a selection of one kind of chunk, each on a host of its own."""
    count, *resources = select.split(":")
    each = int(dict(word.split("=") for word in resources).get("mpiprocs", 1))
    return [f"n{host}" for host in range(int(count)) for _ in range(each)]


def _read(path: Path) -> dict:
    return json.loads(path.read_text())


def _qsub(root: Path, words: list[str]) -> int:
    variables = {}
    if words[0] == "-v":
        variables = dict(pair.split("=", 1) for pair in words[1].split(","))
        words = words[2:]
    text = Path(words[0]).read_text()
    directives = [shlex.split(line) for line in re.findall(r"^#PBS (.*)", text, re.M)]
    limits = dict(word.split("=", 1) for option, word in directives if option == "-l")
    name = f"{len(list((root / 'queue').glob('*.json')))}.stub"
    job = {
        "script": text,
        "title": next(word for option, word in directives if option == "-N"),
        "select": limits["select"],
        "walltime": limits["walltime"],
        "variables": variables,
        "workdir": str(Path.cwd()),
        "state": "Q",
    }
    (root / "queue" / f"{name}.json").write_text(json.dumps(job))
    print(name)
    return 0


def _qstat(root: Path, words: list[str]) -> int:
    assert words[0] == "-f"
    print(_QSTAT.format(name=words[1], **_read(root / "queue" / f"{words[1]}.json")), end="")
    return 0


if __name__ == "__main__":
    program = {"qsub": _qsub, "qstat": _qstat}[sys.argv[2]]
    sys.exit(program(Path(sys.argv[1]), sys.argv[3:]))
