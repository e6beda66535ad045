"""Start a run from verl's command line: its dotted keys, in Hydra's syntax.

    python -m verl_hpc.trainer.main_ppo algorithm.adv_estimator=grpo \\
        data.train_files=data/gsm8k/train.parquet data.val_files=data/gsm8k/test.parquet \\
        actor_rollout_ref.model.path=models/Qwen3-8B actor_rollout_ref.rollout.name=vllm \\
        actor_rollout_ref.rollout.n=8 trainer.logger=['console'] trainer.n_gpus_per_node=8

What is not given has verl's default. Every key either decides a setting of ours, or is refused with
the reason and the nearest setting; none is ignored (`python -m verl_hpc migrate --keys`
prints the table).

key=value, +key=value, ++key=value   a key of verl; lists are [a,b], dictionaries {a: 1}
verl_hpc.SECTION.FIELD=value         a setting of ours that verl has no key for
--config FILE                        a YAML file with such keys; words are over it
--config-name=ppo_megatron_trainer   the keys of the Megatron form, as model_engine=megatron
--config-name=NAME --config-path=DIR   a YAML file of your own, over which words are
--ranks N                            start N ranks on the CPUs of this machine
--bootstrap slurm                    below srun --mpi=none, as of `python -m verl_hpc train`

trainer.nnodes x trainer.n_gpus_per_node is the number of ranks. Below mpiexec or srun it is
compared with theirs; without a launcher so many start on the CPUs of this machine. If neither is
given, the ranks are those that were started.

    python -m verl_hpc migrate COMMAND...    shows the run as a file of ours, and starts nothing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_hpc.errors import VerlHpcError
from verl_hpc.migration.translate import migrate, migrate_file
from verl_hpc.trainer.start import Loaded, run_config, tell_notes


def main(argv: Sequence[str] | None = None) -> int:
    """Run verl's words; return the exit status: 0 done, 1 a `VerlHpcError`, 2 without words."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_hpc.trainer.main_ppo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--bootstrap", choices=("mpi", "slurm"), default="mpi")
    options, keys = parser.parse_known_args(argv)
    if not keys and options.config is None:
        parser.print_help()
        return 2
    try:
        return run_config(lambda: _load(options.config, keys), options.bootstrap, options.ranks)
    except VerlHpcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _load(file: Path | None, keys: Sequence[str]) -> Loaded:
    migration = migrate(keys) if file is None else migrate_file(file, keys)
    config = migration.config()
    tell_notes(migration)
    return config, migration.ranks


if __name__ == "__main__":
    sys.exit(main())
