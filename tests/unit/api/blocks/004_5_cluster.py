"""changed: a job is given to Slurm by submit, in place of ray job submit."""

import contextlib
import io
from pathlib import Path

import verl_hpc
from verl_hpc.cli.main import main

root = Path(verl_hpc.__file__).parents[1]
words = ["submit", "--config", str(root / "configs/run/examples/ppo_lab.yaml"), "--nodes", "2"]
site = ["--cluster", str(root / "slurm/lab.yaml"), "--time", "10", "--dry-run"]
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    status = main([*words, *site])

# What it shows.
assert status == 0 and "#SBATCH --nodes=2" in printed.getvalue()
