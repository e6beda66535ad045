"""Runs of the real trainer as jobs of the lab, and what became of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from tests.jobs.launch import differing, write_problems
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.slurm.tools import job_details
from verl_hpc.testing.slurm_lab import Lab
from verl_hpc.testing.slurm_lab.processes import wait_for
from verl_hpc.testing.slurm_lab.settings import DEFAULT_PARTITION, URGENT_PARTITION

ROOT = Path(__file__).parents[2]
STEPS = 6
RESTART = 85
PATIENCE_S = 540.0
"""Seconds that anything may take on a busy machine."""
_OVER = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY"}

# An untrained model answers nothing right; this gives it something to learn from. The pause makes
# a step long for as long as a test likes, at no cost: the machine has few cores. A shorter one
# holds at once.
REWARD = """
import time
from pathlib import Path

PAUSE_S = Path(__file__).with_name("pause_s")


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    begin = time.monotonic()
    while (left := begin + float(PAUSE_S.read_text()) - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
    return (sum(map(ord, solution_str)) % 5) / 4
"""


def write_run(directory: Path, model: Path, **changes: object) -> Path:
    """A GRPO run of about a second a step, two ranks; returns its configuration file."""
    reward = directory / "reward.py"
    reward.write_text(REWARD)
    set_pause(directory, 0.2)
    rollout = {"engine": "hf", "num_samples": 2, "max_prompt_tokens": 120, "max_response_tokens": 6}
    tree = {
        "name": "run",
        "recipe": "rl",
        "steps": STEPS,
        "directory": str(directory),
        "model": {"path": str(model), "dtype": "float32"},
        "optimizer": {"lr": 1e-3},
        "batch": {"size": 4, "mini_batches": 2},
        "rollout": rollout,
        "data": {"train": write_problems(directory)},
        "reward": {"function": f"{reward}:compute_score"},
        # Other saves than those under test only where a test wants them.
        "checkpoint": {"every": 0, "keep": 99},
        "metrics": {"terminal": "lines", "report": False},
    }
    tree |= changes
    path = directory / f"{tree['name']}.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def set_pause(directory: Path, seconds: float) -> None:
    """How long scoring one of a rank's four responses takes, from now on."""
    fresh = directory / "pause_s.new"
    fresh.write_text(str(seconds))
    fresh.replace(directory / "pause_s")


def cancel_all(lab: Lab) -> None:
    """Jobs of tests end; the one that the submitter may be in stays."""
    for partition in (DEFAULT_PARTITION, URGENT_PARTITION):
        lab.run("scancel", "--me", f"--partition={partition}")


def job_of(done: subprocess.CompletedProcess[str]) -> str:
    """The number of the job that a submission has made."""
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1].rstrip(":")


def without_times(log: str) -> str:
    """A node's log with the rank, and not the time, before each line."""
    return re.sub(r"^( *\d+: )[\d-]{10}T[\d:]{8} ", r"\1", log, flags=re.MULTILINE)


class Run:
    """A run directory, and the job that trains into it."""

    def __init__(self, lab: Lab, config: Path) -> None:
        tree = yaml.safe_load(config.read_text())
        self.lab = lab
        self.config = config
        self.directory = Path(tree["directory"]) / tree["name"]
        self.job = ""

    def try_to_submit(
        self, *words: str, nodes: int = 2, minutes: int = 30
    ) -> subprocess.CompletedProcess[str]:
        """`python -m verl_hpc.submit`, one rank a node."""
        command = [sys.executable, "-m", "verl_hpc.submit", "--config", str(self.config)]
        command += ["--cluster", str(ROOT / "slurm/lab.yaml"), "--nodes", str(nodes)]
        command += ["--time", str(minutes), "site.tasks_per_node=1"]
        command += [f"site.python={sys.executable}", *words]
        environ, place = os.environ | self.lab.environment, self.config.parent
        return subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True)

    def submit(self, *words: str, alone: bool = True, **options: int) -> Run:
        """Submit it, once an earlier job of it is gone from the queue.

        Alone, it starts on the first nodes: those of earlier tests' jobs are free again.
        """
        self.wait_until_gone()
        if alone:
            states = ("sinfo", "--noheader", "--format=%T", "--partition=debug")
            idle = wait_for(lambda: set(self.lab.run(*states).split()) == {"idle"}, PATIENCE_S)
            assert idle, self.lab.run("sinfo") + self.lab.run("squeue")
        self.job = job_of(self.try_to_submit(*words, **options))
        return self

    @property
    def details(self) -> dict[str, str]:
        return job_details(self.job, lambda words: self.lab.run(*words))

    @property
    def state(self) -> str:
        return self.details["JobState"]

    @property
    def restarts(self) -> int:
        return int(self.details["Restarts"])

    @property
    def nodes(self) -> str:
        return self.details["NodeList"]

    @property
    def exit_status(self) -> int:
        """Exit status of the batch script."""
        return int(self.details["ExitCode"].partition(":")[0])

    @property
    def log(self) -> str:
        """What the batch script said, in all its lives."""
        return (self.directory / f"job/slurm-{self.job}.log").read_text()

    @property
    def rank_logs(self) -> str:
        """What ranks said, in all lives of all jobs, without the times."""
        lives = self.directory / "job/attempts"
        files = sorted(lives.glob("[0-9]*/*.log"), key=lambda file: int(file.parent.name))
        texts = (f"== {file.parent.name}/{file.name}\n{file.read_text()}" for file in files)
        return without_times("".join(texts))

    @property
    def attempts(self) -> int:
        return len(list((self.directory / "job/attempts").glob("[0-9]*")))

    @property
    def checkpoints(self) -> list[int]:
        """Steps that were saved, oldest first."""
        steps = complete_steps(self.directory / "checkpoints")
        return sorted(int(step.name.rpartition("_")[2]) for step in steps)

    @property
    def newest(self) -> Path:
        """The checkpoint that the next attempt resumes from."""
        return (self.directory / "checkpoints/latest").resolve()

    @property
    def steps_done(self) -> int:
        file = self.directory / "metrics.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def steps_told(self) -> list[int]:
        """Steps that rank 0 logged as done, in all attempts."""
        return [int(number) for number in re.findall(r"^0: step +(\d+)/", self.rank_logs, re.M)]

    def is_over(self) -> bool:
        return self.state in _OVER

    def hurry(self) -> None:
        """Nothing is to be caught any more: no pauses."""
        set_pause(self.config.parent, 0)

    def signal(self, name: str) -> None:
        """Slurm sends a signal to all ranks."""
        self.lab.run("scancel", f"--signal={name}", self.job)

    @property
    def minutes(self) -> int:
        """Whole minutes that the job has been running."""
        clock = self.details["RunTime"].rpartition("-")[2]
        hours, minutes, _ = map(int, clock.split(":"))
        return 60 * hours + minutes

    def set_time_limit(self, minutes: int) -> None:
        """An administrator may also make a job longer."""
        self.lab.administer("scontrol", "update", f"jobid={self.job}", f"timelimit={minutes}")

    def preempt(self) -> None:
        """A job that is urgent wants all nodes."""
        words = "--partition=urgent --nodes=4 --exclusive --output=/dev/null --wrap=true"
        self.lab.run("sbatch", *words.split())

    def ranks(self) -> dict[int, int]:
        """Process ids of the ranks by their number, those that run Python."""
        nodes = self.lab.settings.node_names
        processes = [process for node in nodes for process in self.lab.processes_of(node)]
        numbers = {process: self._rank_of(process) for process in processes}
        return {number: process for process, number in numbers.items() if number is not None}

    def has_started(self) -> bool:
        """Whether ranks run Python and know each other; they are far from their first step."""
        return (self.directory / "config.yaml").exists()

    def _rank_of(self, process: int) -> int | None:
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        ours = f"SLURM_JOB_ID={self.job}".encode() in variables
        if not ours or b"train" not in command or b"python" not in command[0]:
            return None
        numbers = [v for v in variables if v.startswith(b"SLURM_PROCID=")]
        return int(numbers[0].partition(b"=")[2]) if numbers else None

    def wait(self, condition, what: str) -> None:
        """Until the condition holds; a job that ends, or does not get there, is a failure."""
        gone = lambda: condition() or self.is_over()  # noqa: E731
        in_time = wait_for(gone, PATIENCE_S, 0.1)
        assert in_time and condition(), f"never {what}: {self}"

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self.steps_done >= step, f"{step} steps done")

    def wait_for_life(self, number: int) -> None:
        """Until the job, or the run's next one, has started this often; the first is 0."""
        self.wait(lambda: self.attempts > number, f"started again, in life {number}")

    def wait_until_gone(self) -> None:
        """A job that has ended is in the queue until its nodes are free."""
        queue = ("squeue", "--noheader", "--format=%A")
        gone = wait_for(lambda: self.job not in self.lab.run(*queue).split(), PATIENCE_S)
        assert gone, f"still in the queue: {self}"

    def wait_for_end(self) -> str:
        """The job's last state."""
        over = wait_for(self.is_over, PATIENCE_S, 0.2)
        assert over, f"never over: {self}"
        return self.state

    def finish(self) -> None:
        """Wait until all steps are done."""
        self.hurry()
        assert self.wait_for_end() == "COMPLETED", str(self)

    def assert_equals(self, undisturbed: Run) -> None:
        """The last step is that of a run to which nothing happened, to the last bit."""
        assert self.newest.name == undisturbed.newest.name
        assert differing(undisturbed.newest, self.newest) == []

    def assert_saved_well(self, undisturbed: Run) -> None:
        """The newest step is what a run to which nothing happened had saved there."""
        assert differing(undisturbed.newest.with_name(self.newest.name), self.newest) == []

    def __str__(self) -> str:
        return f"job {self.job}: {self.details}\n{self.log}\n{self.rank_logs}"
