"""A real run of programs in bubblewrap for benchmarks.agent_kills, and what of it is alive."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from benchmarks.launch import begin, last_lines
from verl_hpc.checkpoint.schema import step_number
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.metrics.log import read_metrics
from verl_hpc.runs.process import stat_fields
from verl_hpc.runtime.processes import children

PROMPTS, SAMPLES, RANKS = 2, 4, 2
MANY_STEPS = 1000
AGENT = """
import json, os, random, sys, time, urllib.request

row = json.load(open(os.environ["VERL_HPC_ROW"]))
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
said = row["prompt"]
for turn in range(random.randint(1, 3)):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/completions",
        json.dumps({"model": "policy", "prompt": said, "max_tokens": 6}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    said += json.load(urllib.request.urlopen(request))["choices"][0]["text"] + " so"
    time.sleep(random.uniform(0.0, 0.6))
json.dump(len(said) % 3, open(os.environ["VERL_HPC_SCORE"], "w"))
"""
"""It starts a process that outlives it, asks for one to three turns, and scores itself."""


@dataclass(frozen=True)
class Process:
    """A process, told from later ones of the same number by the time of its start."""

    pid: int
    start: str

    @property
    def lives(self) -> bool:
        return process_of(self.pid) == self

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        with suppress(ProcessLookupError):
            if self.lives:
                os.kill(self.pid, number)


def process_of(pid: int) -> Process | None:
    """Return the living process of a number; None also where it waits to be collected."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, fields[19])


@dataclass(frozen=True)
class LiveProgram:
    """A program under way, with all that looks after it."""

    step: int
    """The step whose response it makes."""
    main: Process
    child: Process | None
    """What it has forked, in a session of its own."""
    forwarder: Process
    """The first process of its sandbox."""
    bubblewrap: Process
    keeper: Process
    guard: Process

    @property
    def processes(self) -> list[Process]:
        around = [self.forwarder, self.bubblewrap, self.keeper, self.guard]
        return [self.main, *filter(None, [self.child]), *around]


class KilledRun:
    """A run that is killed and started again.

    All its processes have the name of a directory of its own in their variables or words.
    """

    def __init__(self, directory: Path, temporary: Path) -> None:
        self.temporary, self.marker = temporary, temporary.name
        self.directory, self._here = directory / "run", directory
        self.starts: list[float] = []
        self._launcher: subprocess.Popen[bytes] | None = None

    def make(self, seed: int) -> None:
        """Make its model, its program and its configuration."""
        here = self._here
        sizes = '{"num_hidden_layers": 2, "max_position_embeddings": 256}'
        words = ["-m", "verl_hpc.testing.tiny", "--out", here / "model", "--sizes", sizes]
        subprocess.run([sys.executable, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
        (here / "files").mkdir()
        (here / "files/agent.py").write_text(AGENT)
        chance = Random(seed)
        rows = [
            {"prompt": "".join(chance.choices("abcdef", k=6)), "answer": "a"}
            for _ in range(PROMPTS * MANY_STEPS)
        ]
        (here / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (here / "config.yaml").write_text(yaml.safe_dump(self._config(seed)))

    def _config(self, seed: int) -> dict[str, Any]:
        program = {"command": ["python", "agent.py", self.marker], "max_programs": 4}
        program |= {"directory": str(self._here / "files"), "on_error": "end"}
        return {
            "name": "run",
            "directory": str(self._here),
            "recipe": "rl",
            "seed": seed,
            "steps": MANY_STEPS,
            "model": {"path": str(self._here / "model"), "dtype": "float32"},
            "batch": {"size": PROMPTS},
            "rollout": {
                "num_samples": SAMPLES,
                "max_prompt_tokens": 64,
                "max_response_tokens": 64,
                "kv_cache_gib": 0.03,
                "program": program,
            },
            "data": {
                "chat": "never",
                "shuffle": False,
                "train": {"kind": "files", "paths": [str(self._here / "rows.jsonl")]},
            },
            "reward": {"function": "program"},
            "checkpoint": {"every": 1},
        }

    def start(self) -> None:
        """Start it, or start it again."""
        self.starts.append(time.time())
        words = ["-m", "verl_hpc", "train", "--ranks", str(RANKS)]
        words += ["--config", str(self._here / "config.yaml")]
        variables = {"TMPDIR": str(self.temporary), "KILLED_RUN": self.marker}
        self._launcher = begin([sys.executable, *words], self.log, variables)

    @property
    def log(self) -> Path:
        return self._here / f"log-{len(self.starts)}"

    @property
    def launcher(self) -> subprocess.Popen[bytes]:
        assert self._launcher is not None
        return self._launcher

    @property
    def said(self) -> str:
        """The end of what its last start printed."""
        return last_lines(self.log)

    def parents(self) -> list[Process]:
        """Return the parents of its ranks, which are forks of its launcher."""
        return _below([Process(self.launcher.pid, "")], b"verl_hpc")

    def ranks(self) -> list[Process]:
        """Return its ranks."""
        return _below(self.parents(), b"verl_hpc")

    def helpers(self) -> list[Process]:
        """Return the helpers that start its ranks' programs."""
        return _below(self.ranks(), b"verl_hpc.agents.helper")

    def programs(self) -> Iterator[LiveProgram]:
        """Yield its programs whose command runs."""
        for process in self.alive():
            words = _words(process.pid)
            if words[1:2] == [b"agent.py"] and (found := self._around(process)):
                yield found

    def _around(self, main: Process) -> LiveProgram | None:
        """Return the program of a main process; None of another one, or when it ends meanwhile."""
        with suppress(OSError, ValueError):
            pids = [main.pid]
            while len(pids) < 5:
                pids.append(int(stat_fields(pids[-1])[1]))
            if not any(word.endswith(b"forward.py") for word in _words(pids[1])):
                return None
            path = Path(f"/proc/{main.pid}/root{_variables(main.pid)['VERL_HPC_ROW']}")
            step = json.loads(path.read_text())["index"] // PROMPTS + 1
            around = [process_of(pid) for pid in pids[1:]]
            child = next((process_of(pid) for pid in children(main.pid)), None)
            if all(around):
                return LiveProgram(step, main, child, *around)  # type: ignore[arg-type]
        return None

    def alive(self) -> list[Process]:
        """Return all its processes that live."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
            process = process_of(int(name))
            with suppress(OSError):
                seen = [Path(f"/proc/{name}/{of}").read_bytes() for of in ("environ", "cmdline")]
                if process is not None and any(self.marker.encode() in text for text in seen):
                    found.append(process)
        return found

    def left(self) -> list[str]:
        """Return what it has left in its directory for temporary files, sockets among it."""
        return sorted(
            str(path.relative_to(self.temporary))
            for path in self.temporary.rglob("*")
            if path.name.startswith(("verl_hpc", "program_")) or path.is_socket()
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return its metrics."""
        return read_metrics(self.directory) if (self.directory / "metrics.jsonl").exists() else []

    def saved(self) -> int:
        """Return its newest whole checkpoint's step, or 0."""
        steps = map(step_number, complete_steps(self.directory / "checkpoints"))
        return max(filter(None, steps), default=0)

    def remove(self) -> None:
        """Remove its directory for temporary files."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    def kill_all(self) -> None:
        """Kill all that is left of it."""
        for process in self.alive():
            process.send(signal.SIGKILL)


def _below(parents: Sequence[Process], module: bytes) -> list[Process]:
    """Return the children of some processes that run a module of Python."""
    found = [process_of(pid) for parent in parents for pid in children(parent.pid)]
    return [one for one in found if one and _words(one.pid)[1:3] == [b"-m", module]]


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _variables(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)
