"""Thirty runs of one rank in a lab, and what is done to them while they train."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

from tests.slurm.runs import PATIENCE_S, Run, set_pause, write_run
from tests.slurm.test_submission import run_state, submit_sweep
from verl_hpc.testing.slurm_lab import Lab
from verl_hpc.testing.slurm_lab.processes import wait_for

CEILING = 0.12
"""GPU-hours."""
KINDS = {
    "ceiling": 3, "node lost": 2, "rank killed": 3, "chain": 3, "requeued": 3, "cancelled": 4,
    "array": 12,
}  # fmt: skip
STARTS = {
    "ceiling": 1, "node lost": 2, "rank killed": 2, "chain": 2, "requeued": 2, "cancelled": 1,
    "array": 1,
}  # fmt: skip
"""Starts that a run of each kind comes to."""
_WAITING_S, _SHORT_S = 20.0, 0.3
"""Pauses for each of a step's eight responses: until a run is struck, and while it is."""


class Fleet:
    """Runs of all kinds, each in a directory of its own; those of the array share one."""

    def __init__(self, lab: Lab, model: Path, directory: Path, words: tuple[str, ...]) -> None:
        self.lab, self.words = lab, words
        self.runs: dict[str, Run] = {}
        self.jobs: dict[str, list[str]] = {}
        """Slurm's numbers of each run's jobs, by its directory."""
        self.directories: dict[str, Path] = {}
        self.kinds: list[str] = []
        """What becomes of each of `directories`."""
        for kind, number in KINDS.items():
            for index in range(1 if kind == "array" else number):
                name = f"{kind.replace(' ', '_')}_{index}"
                place = directory / name
                place.mkdir()
                steps = 2 if kind == "array" else 500 if kind == "ceiling" else 6
                self.runs[name] = Run(lab, write_run(place, model, name=name, steps=steps))

    def submit(self) -> None:
        """All of them, one node each; they start as nodes become free."""
        for name, run in self.runs.items():
            kind = self._kind(name)
            words = [*self.words, *_WORDS.get(kind, ())]
            if kind == "array":
                set_pause(run.config.parent, 0)
                seeds = ",".join(map(str, range(KINDS[kind])))
                run.job, _ = submit_sweep(run, *words, "--sweep", f"seed={seeds}")
                paths = (path for path in run.directory.iterdir() if path.name.isdecimal())
                runs = sorted(paths, key=lambda path: int(path.name))
                self.array = [f"{run.job}_{index}" for index in range(len(runs))]
                for job, path in zip(self.array, runs, strict=True):
                    self._add(kind, path, job)
                continue
            set_pause(run.config.parent, _SHORT_S if kind == "ceiling" else _WAITING_S)
            run.submit(*words, alone=False, nodes=1)
            self._add(kind, run.directory, run.job)

    def strike(self) -> None:
        """One run after the other, when it has done a step and is in its second or third."""
        for name, run in self.runs.items():
            kind = self._kind(name)
            if kind in ("array", "ceiling"):
                continue
            assert wait_for(lambda run=run: run.has_started(), PATIENCE_S, 0.2), run
            set_pause(run.config.parent, _SHORT_S)
            run.wait_for_step(1)
            if kind == "cancelled":
                self.lab.run("scancel", run.job)
            elif kind == "rank killed":
                os.kill(run.ranks()[0], signal.SIGKILL)
                assert run.wait_for_end() == "FAILED"
                run.submit(*self.words, alone=False, nodes=1)
                self.jobs[str(run.directory)].append(run.job)
            elif kind == "node lost":
                node = run.nodes
                self.lab.kill_node(node)
                # A site's health check is faster than Slurm, which takes minutes to be sure.
                self.lab.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power")
                assert wait_for(lambda run=run: run.state != "RUNNING", PATIENCE_S, 0.2), run
                self.lab.mend()
            else:
                run.signal("USR2")
            run.hurry()
            if kind == "chain":
                run.wait_for_end()
                run.job = str(int(run.job) + 1)
                self.jobs[str(run.directory)].append(run.job)

    def finish(self) -> None:
        """Wait for all of them, and for Slurm's accounts."""
        for name, run in self.runs.items():
            if self._kind(name) != "array":
                wanted = "CANCELLED" if self._kind(name) == "cancelled" else "COMPLETED"
                assert run.wait_for_end() == wanted, run
        over = lambda: all(run_state(self.lab, job) == "COMPLETED" for job in self.array)  # noqa: E731
        assert wait_for(over, PATIENCE_S, 0.5)
        empty = lambda: not self.lab.run("squeue", "--noheader").strip()  # noqa: E731
        assert wait_for(empty, PATIENCE_S, 0.5)
        jobs = [job for jobs in self.jobs.values() for job in jobs]
        words = ("sacct", "-n", "-X", "--format=End", "-j", ",".join(jobs))
        assert wait_for(lambda: "Unknown" not in self.lab.run(*words), PATIENCE_S, 1.0)

    def rows(self, name: str) -> list[dict[str, float]]:
        """The run's metrics, a row for each step."""
        return [json.loads(line) for line in (Path(name) / "metrics.jsonl").open()]

    def _add(self, kind: str, directory: Path, job: str) -> None:
        self.kinds.append(kind)
        self.directories[str(directory)] = directory
        self.jobs[str(directory)] = [job]

    @staticmethod
    def _kind(name: str) -> str:
        return name.rpartition("_")[0].replace("_", " ")


_WORDS = {
    "ceiling": (f"runtime.max_gpu_hours={CEILING}",),
    "chain": ("--resume-by", "chain", "--max-restarts", "1"),
}


class Table:
    """Sums by kind of run, as benchmarks/results/2026-11-budget-lab.md has them."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[str]] = {}

    def add(self, kind: str, use: dict, sacct: float, own: float, turned: float) -> None:
        """Add a run.

        Args:
            kind: of it.
            use: what `budget` says of it.
            sacct: its GPU-seconds, from the starts and ends of its jobs.
            own: its GPU-seconds by its own records.
            turned: joules that meters counted from the starts to the ends of its jobs.
        """
        row = self.rows.setdefault(kind, Counter())
        row["runs"] += 1
        row["starts"] += use["starts"]
        row["sacct"] += sacct
        row["budget"] += 3600 * use["hours"]
        row["own"] += own
        row["lost s"] += use["lost_s"]
        if use["metered_share"] > 0.995:
            row["metered J"] += 3.6e6 * use["kwh"]
            row["turned J"] += turned

    @property
    def sums(self) -> Counter[str]:
        return sum(self.rows.values(), Counter())

    def __str__(self) -> str:
        columns = ("runs", "starts", "sacct", "budget", "own", "lost s", "metered J", "turned J")
        lines = ["", "| kind | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
        for kind, row in [*self.rows.items(), ("together", self.sums)]:
            cells = " | ".join(f"{row[name]:,.1f}" for name in columns)
            lines.append(f"| {kind} | {cells} |")
        return "\n".join(lines)
