"""A stand-in for the login node of each public system: its programs give fixed answers.

What they say of partitions, QOS and nodes is made up after the head of each profile.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.programs import program

PACKAGES = ("torch", "mpi4py", "megatron-core", "h5py", "vllm")
PYTHON = json.dumps({"version": "3.12.3", "found": dict.fromkeys(PACKAGES, "1.0")})
WITHOUT_TORCH = PYTHON.replace('"torch": "1.0"', '"torch": null')


class Refused(str):
    """What a program says when it fails."""


@dataclass
class Cluster:
    """Answers by the beginning of a command; a program that has none is not on PATH."""

    answers: dict[str, str] = field(default_factory=dict)

    def which(self, name: str) -> str | None:
        there = any(command.split()[0] == name for command in self.answers)
        return f"/usr/bin/{name}" if there else None

    def run(self, words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        """In the place of `subprocess.run`: a process for each question would take minutes."""
        asked = " ".join(words)
        found = [command for command in self.answers if asked.startswith(command)]
        if not found:
            raise FileNotFoundError(2, "No such file or directory", words[0])
        answer = self.answers[max(found, key=len)]
        if isinstance(answer, Refused):
            return subprocess.CompletedProcess(words, 1, "", f"{answer}\n")
        return subprocess.CompletedProcess(words, 0, f"{answer}\n", "")

    def install(self, directory: Path) -> None:
        """Write the programs as files of a directory for PATH."""
        for name in {command.split()[0] for command in self.answers}:
            cases = "".join(
                f"'{command}'*) cat <<'END'\n{answer}\nEND\n;;\n"
                for command, answer in sorted(self.answers.items(), reverse=True)
                if command.split()[0] == name
            )
            program(directory / name, f'case "{name} $*" in\n{cases}esac')

    def lose(self, name: str) -> None:
        """Take a program away."""
        for command in [c for c in self.answers if c.split()[0] == name]:
            del self.answers[command]

    def change(self, command: str, old: str, new: str) -> None:
        """Another word in an answer, which had it."""
        assert old in self.answers[command], (command, old)
        self.answers[command] = self.answers[command].replace(old, new)


PARTITION = "scontrol --oneliner show partition"
CONFIG = "scontrol show config"
ACCOUNTS = "sacctmgr --noheader --parsable2 show associations"
QOS = "sacctmgr --noheader --parsable2 show qos"
MPI = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: v4"

_NODES = {
    # Partition that serves the job, whether it is the default, cores and GPUs that sinfo shows.
    "lumi_g": ("standard-g", False, "128|gpu:mi250:8"),
    "leonardo_booster": ("boost_usr_prod", True, "32|gpu:a100:4(S:0-1)"),
    "juwels_booster": ("booster", False, "96|gpu:4"),
    # Where a profile names no partition the site's own plugin of sbatch chooses one.
    "perlmutter_gpu": ("regular_milan", True, "256|(null)"),
    "marenostrum5_acc": ("gpp", True, "112|(null)"),
    "roihu_gpu": ("gpularge", False, "288|gpu:gh200:4(S:0-3)"),
    # Nobody asks for the GPUs there, so that Slurm need not know of them.
    "alps_clariden": ("normal", True, "288|(null)"),
    "alex_a100": ("a40", True, "128|gpu:a40:8(S:0-7)"),
}


def healthy(system: str) -> Cluster:
    """The login node of a system on which nothing is wrong."""
    name, default, kinds = _NODES[system]
    partition = f"PartitionName={name} Default={'YES' if default else 'NO'} MaxNodes=64 "
    partition += "MaxTime=1-00:00:00 State=UP TotalNodes=800"
    return Cluster(
        {
            "sbatch --version": "slurm 24.05.8",
            "sbatch --test-only": "",
            "srun --mpi=list": MPI,
            "srun --help": "      --container-image=x\n      --environment=x",
            PARTITION: partition,
            "squeue": "",
            "sinfo": kinds,
            "scancel": "",
            ACCOUNTS: "lab|ACCOUNT|normal,regular,acc_ehpc,a100multi\nlab|other|normal",
            CONFIG: "ClusterName = lab",
            QOS: "normal|\nregular|2-00:00:00\nacc_ehpc|3-00:00:00\na100multi|1-00:00:00",
            "stat": "ext2/ext3",
            "quota": "",
            "python": PYTHON,
            "singularity": "",
            "enter": PYTHON,
        }
    )
