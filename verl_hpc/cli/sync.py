"""Upload the offline runs that a run has left of Weights & Biases, with W&B's own `sync`.

For a login node, which has a network where compute nodes have none. W&B takes its key from
`wandb login` or WANDB_API_KEY, and its server from WANDB_BASE_URL; what is uploaded already it
leaves out. So does this command with the start that is under way, which W&B would take for whole.
RUN is a run directory, or the name of one below runs/.

examples:
  python -m verl_hpc sync grpo_8b
  WANDB_BASE_URL=https://wandb.my.site python -m verl_hpc sync runs/grpo_8b
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from verl_hpc.errors import ConfigError, LaunchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory, or its name below runs/")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.cli.status import read_status
    from verl_hpc.config.trackers import is_installed
    from verl_hpc.runs.find import find_run

    directory = find_run(arguments.run).resolve()
    offline = sorted(path for path in (directory / "wandb").glob("offline-run-*") if path.is_dir())
    if not offline:
        raise ConfigError(
            f"{directory}: has no offline run of W&B in wandb/; a run leaves one with "
            "metrics.wandb.project"
        )
    if not is_installed("wandb"):
        raise ConfigError("the package wandb is not installed in this Python; pip install wandb")
    state = read_status(directory, time.time()).state
    if not state.is_over and state.name != "queued":
        print(
            f"{offline.pop().name} is left out: the run is {state.name}; call this again afterwards"
        )
    if not offline:
        return 0
    words = [sys.executable, "-m", "wandb", "sync", *map(str, offline)]
    # W&B leaves a log of its own in wandb/ of where it is called.
    status = subprocess.run(words, cwd=directory, check=False).returncode
    if status:
        raise LaunchError(
            f"wandb sync has ended with status {status} and said why above; the runs stay in "
            f"{directory / 'wandb'}, so try again"
        )
    return 0
