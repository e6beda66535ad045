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

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.errors import ConfigError, VerlHpcError
from verl_hpc.migration.translate import migrate, migrate_file
from verl_hpc.trainer.start import Loaded, run_config, tell_notes

if TYPE_CHECKING:
    from verl_hpc.runtime.bootstrap import Kind

_OPTIONS = ("--config", "--ranks", "--bootstrap")


def main(argv: Sequence[str] | None = None) -> int:
    """Run verl's words; return the exit status: 0 done, 1 a `VerlHpcError`."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or "--help" in words or "-h" in words:
        print(__doc__)
        return 0 if words else 2
    try:
        options, keys = _options(words)
        return run_config(lambda: _load(options, keys), _bootstrap(options), _ranks(options))
    except VerlHpcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _load(options: dict[str, str], keys: Sequence[str]) -> Loaded:
    file = options.get("--config")
    migration = migrate(keys) if file is None else migrate_file(Path(file), keys)
    config = migration.config()
    tell_notes(migration)
    return config, migration.ranks


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Separate our options from verl's words."""
    options: dict[str, str] = {}
    rest: list[str] = []
    waiting = iter(words)
    for word in waiting:
        name, separator, text = word.partition("=")
        if name not in _OPTIONS:
            rest.append(word)
            continue
        value = text if separator else next(waiting, "")
        if not value:
            raise ConfigError(f"{name}: is given without a value")
        options[name] = value
    return options, rest


def _ranks(options: dict[str, str]) -> int | None:
    text = options.get("--ranks")
    if text is not None and not text.isdecimal():
        raise ConfigError(f"--ranks {text}: expected a number")
    return None if text is None else int(text)


def _bootstrap(options: dict[str, str]) -> Kind:
    text = options.get("--bootstrap", "mpi")
    if text not in ("mpi", "slurm"):
        raise ConfigError(f"--bootstrap {text}: expected mpi or slurm")
    return "slurm" if text == "slurm" else "mpi"


if __name__ == "__main__":
    sys.exit(main())
