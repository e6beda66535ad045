"""Write a model of a checkpoint as a Hugging Face directory that transformers loads.

It is the actor, or --component; a reward model becomes a sequence classifier. Of a run with
adapters (lora) the adapters alone are written, as PEFT loads them.

Reads one tensor file's worth at a time, compares the number of parameters and every tensor's
checksum with what was read, and never overwrites.

examples:
  python -m verl_hpc export --step runs/NAME/checkpoints/latest --out my-model
  python -m verl_hpc export --step runs/NAME/checkpoints/step_00000100 --out my-model \\
      --dtype bfloat16
  python -m verl_hpc export --step runs/NAME/checkpoints/latest --out my-reward-model \\
      --component reward
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--step", required=True, type=Path, metavar="DIR", help="step directory")
    add("--out", required=True, type=Path, metavar="HF_DIR", help="directory to create")
    add("--component", metavar="NAME", help="default: the actor, or the only model that there is")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="default: as stored")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.checkpoint.convert import export_step

    count = export_step(
        arguments.step, arguments.out, arguments.dtype, component=arguments.component
    )
    print(f"{arguments.out}: {count:,} parameters, checksums verified")
    return 0
