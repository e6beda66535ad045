"""Run steps one after another, keep a record of each, and write the page after each.

A record says `running` while its step runs. One that is found so when nobody runs it was
interrupted, as by a machine that was taken away, and its step is run again.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import launch
from benchmarks.first_hour.page import page
from benchmarks.first_hour.step import Here, Step

DONE, FAILED, LATE, NOT_RUN, RUNNING = "done", "failed", "out of time", "not run", "running"


@dataclass(frozen=True)
class Begun:
    """A step that runs."""

    step: Step
    program: subprocess.Popen[bytes]
    record: Mapping[str, Any]
    start: float
    """Of `time.monotonic`."""


@dataclass
class Runner:
    """One use of the steps, in one directory."""

    steps: Sequence[Step]
    out: Path
    rehearse: bool
    wheels: Path | None = None

    def run(self, only: Sequence[str], again: Sequence[str] = ()) -> int:
        """Run the steps that are named in `only` and not done yet.

        Returns:
            0 if each is done or cannot be run, 1 if one failed or was out of time, 2 if none could
            be run but those that look at the machine.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        self._refuse_mixture()
        chosen = [step for step in self.steps if step.name in only]
        behind: dict[str, Begun] = {}
        try:
            for step in chosen:
                for name in [n for n, b in behind.items() if n == step.after or _is_over(b)]:
                    self._finish(behind.pop(name))
                is_done = self._record(step).get("state") == DONE
                if is_done and not step.always and step.name not in again:
                    print(f"{step.name}: done before", flush=True)
                    continue
                begun = self._begin(step)
                if begun is not None and step.in_background:
                    behind[step.name] = begun
                elif begun is not None:
                    self._finish(begun)
            while behind:
                self._finish(behind.popitem()[1])
        finally:
            for left in behind.values():
                launch.end(left.program)
        self.write_page()
        print(f"written: {self.out / 'first_hour.md'}")
        return self._status(chosen)

    def write_page(self) -> None:
        """Write what is known so far; a reader never sees half a page."""
        records = {step.name: self._record(step) for step in self.steps}
        temporary = self.out / ".first_hour.md"
        temporary.write_text(page(self.steps, records, self._here(), self.out), encoding="utf-8")
        temporary.replace(self.out / "first_hour.md")

    def _status(self, chosen: Sequence[Step]) -> int:
        states = {step.name: self._record(step)["state"] for step in chosen}
        if FAILED in states.values() or LATE in states.values():
            return 1
        measured = [states[step.name] for step in chosen if not step.always]
        return 2 if measured and set(measured) == {NOT_RUN} else 0

    def _begin(self, step: Step) -> Begun | None:
        """Start a step; None if it cannot be run here, which its record then says."""
        here = self._here()
        reason = step.lacks(here)
        record = self._new_record(step)
        if reason is not None:
            print(f"{step.name}: not run: {reason}", flush=True)
            self._keep(step, record | {"state": NOT_RUN, "reason": reason})
            return None
        for kind in ("result.json", "result.md"):
            (self.out / f"{step.name}.{kind}").unlink(missing_ok=True)
        words = list(step.words(here))
        record |= {"command": shlex.join(launch.shown(words)), "state": RUNNING}
        self._keep(step, record)
        print(f"{step.name}: at most {step.limit_s:.0f} s", flush=True)
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.rehearse else {}
        variables = hidden | dict(step.variables(here))
        start = time.monotonic()
        program = launch.begin(words, self.out / f"{step.name}.log", variables)
        return Begun(step, program, record, start)

    def _finish(self, begun: Begun) -> None:
        """Wait for a step within its limit, and write what became of it."""
        step = begun.step
        left = begun.start + step.limit_s - time.monotonic()
        status = launch.status_after(begun.program, max(left, 0))
        seconds = round(time.monotonic() - begun.start, 1)
        state = LATE if status is None else FAILED if status else DONE
        print(f"{step.name}: {state} after {seconds:.0f} s", flush=True)
        made = {"state": state, "status": status, "seconds": seconds}
        result = _read(self.out / f"{step.name}.result.json")
        self._keep(step, {**begun.record, **made, "result": result})

    def _new_record(self, step: Step) -> dict[str, Any]:
        return {
            "name": step.name,
            "claim": step.claim,
            "limit_s": step.limit_s,
            "rehearsal": self.rehearse,
            "commit": commit(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _here(self) -> Here:
        facts = _read(self.out / "environment.result.json") or {}
        return Here(self.out, self.rehearse, self.wheels, facts)

    def _keep(self, step: Step, record: Mapping[str, Any]) -> None:
        temporary = self.out / f".{step.name}.json"
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.out / f"{step.name}.json")
        self.write_page()

    def _record(self, step: Step) -> dict[str, Any]:
        return _read(self.out / f"{step.name}.json") or {}

    def _refuse_mixture(self) -> None:
        """Raises: SystemExit: the directory has records of the other kind."""
        kinds = {record.get("rehearsal") for step in self.steps if (record := self._record(step))}
        if kinds and self.rehearse not in kinds:
            raise SystemExit(
                f"first_hour: {self.out} holds {'GPU steps' if self.rehearse else 'a rehearsal'}; "
                "give another directory as --out"
            )


def _is_over(begun: Begun) -> bool:
    return begun.program.poll() is not None


def commit() -> str:
    """The commit of this checkout; unknown in a copy without one."""
    words = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(words, cwd=launch.REPOSITORY, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _read(file: Path) -> Any:
    """A JSON file; None if it is not there, or only half written."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
