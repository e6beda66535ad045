"""Write a Hugging Face directory as step 0 of a checkpoint directory.

With several MPI ranks each writes its part. A run starts from it by model.path:
CHECKPOINTS/step_00000000; starting from the Hugging Face directory itself works as well.

examples:
  python -m verl_hpc import --hf my-model --out my-checkpoints
  mpiexec -n 8 python -m verl_hpc import --hf my-model --out my-checkpoints
"""

from __future__ import annotations

import argparse
from pathlib import Path

_TIMEOUT_S = 600.0
"""Seconds for ranks to find each other."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hf", required=True, metavar="HF_DIR", help="model to read, or ORG/NAME")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="checkpoint directory"
    )


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.checkpoint.convert import import_model
    from verl_hpc.runtime.channel import MpiChannel
    from verl_hpc.runtime.control import Control
    from verl_hpc.runtime.mpi import start_mpi
    from verl_hpc.sources.local import required_directory

    control = Control(MpiChannel(start_mpi(_TIMEOUT_S).COMM_WORLD))
    source = control.together(lambda: required_directory("--hf", arguments.hf))
    path = import_model(control, source, arguments.out)
    if control.rank == 0:
        print(path)
    return 0
