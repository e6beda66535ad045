"""Run a training configuration on the MPI ranks that this was started on.

Start it with the launcher of your MPI library, or with srun; one process is a world of one rank.

examples:
  python -m verl_hpc train --ranks 4 --config configs/run/examples/quickstart.yaml name=mine
  mpiexec -n 4 python -m verl_hpc train --config configs/run/examples/quickstart.yaml name=mine
  srun --mpi=pmi2 python -m verl_hpc train --config run.yaml optimizer.lr=1e-6 seed=3
  srun --mpi=none --kill-on-bad-exit=1 python -m verl_hpc train --bootstrap slurm --config run.yaml
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from verl_hpc.config.run import RunConfig
from verl_hpc.migration.translate import load_run
from verl_hpc.runtime import environment
from verl_hpc.trainer.start import Loaded, run_config, tell_notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="YAML", help="the run's configuration")
    parser.add_argument(
        "--bootstrap",
        choices=("mpi", "slurm"),
        default="mpi",
        help="how ranks find each other: slurm needs srun --mpi=none and no MPI library",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="start N ranks on the CPUs of this machine, which import the libraries once",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="section.field=value", help="settings over the file's"
    )


def run(arguments: argparse.Namespace) -> int:
    return run_config(
        lambda: _load(arguments.config, arguments.overrides), arguments.bootstrap, arguments.ranks
    )


def _load(path: str, overrides: Sequence[str]) -> Loaded:
    """Load a file of ours, or one with verl's or a tutorial's keys."""
    if environment.launcher_rank() != 0:  # one rank says what was dropped
        logging.getLogger("verl_hpc.config").setLevel(logging.ERROR)
    loaded = load_run(path, overrides)
    if isinstance(loaded, RunConfig):
        return loaded, None
    config = loaded.config()
    tell_notes(loaded)
    return config, loaded.ranks


if __name__ == "__main__":  # verl's tutorials start `verl.cli.train`
    from verl_hpc.cli.main import main

    sys.exit(main(["train", *sys.argv[1:]]))
