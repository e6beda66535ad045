"""Show a verl command line, script or YAML file as a run's file of ours; starts nothing.

Above the settings comments say which keys of verl were refused, and what is to know of those that
were converted. The exit status is 3 if one was refused. A script's variables are those of the
environment and of its own assignments: bash runs it in bubblewrap, without network, with nothing
writable and without its programs. NAME=value before the script is what the variable is, whatever
the script sets.

examples:
  python -m verl_hpc migrate run_qwen3_8b_megatron.sh > run.yaml
  python -m verl_hpc migrate MODEL_PATH=models/Qwen3-8B run.sh trainer.logger=['console']
  python -m verl_hpc migrate ppo_config.yaml
  python -m verl_hpc migrate python3 -m verl.trainer.main_ppo data.train_files=train.parquet ...
  python -m verl_hpc migrate --keys rollout
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.errors import ConfigError
from verl_hpc.migration.legacy import older
from verl_hpc.migration.row import Row
from verl_hpc.migration.script import PROGRAMS, command_words, words_of
from verl_hpc.migration.table import rows
from verl_hpc.migration.translate import Migration, migrate, migrate_file, told_together
from verl_hpc.migration.words import joined

_REFUSED = 3
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_LAUNCHERS = ("python", "python3", "torchrun")
_COUNTS = {"nproc_per_node": "trainer.n_gpus_per_node", "nnodes": "trainer.nnodes"}
_MEETING = (
    "standalone",
    "master_addr",
    "master_port",
    "node_rank",
    "rdzv_backend",
    "rdzv_endpoint",
)
"""Options of torchrun by which ranks find each other; here srun or mpiexec does that."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys",
        nargs="?",
        const="",
        metavar="WORD",
        help="instead: the table of verl's keys, or of those that have this word in them",
    )
    add = parser.add_argument
    add("-m", dest="module", metavar="MODULE", help="as in python3 -m verl.trainer.main_ppo ...")
    add("--config-name", metavar="NAME", help="ppo_trainer, ppo_megatron_trainer or your own file")
    add("--config-path", metavar="DIR", help="the directory of a file of your own")
    add("words", nargs="*", metavar="FILE|COMMAND", help="and overrides over a file")


def plain_words(words: Sequence[str]) -> list[str]:
    """Rewrite options of the migrated program, which are not this verb's, as `++key=value`.

    Raises:
        ConfigError: an option has no value.
    """
    if any(word.partition("=")[0] in ("--keys", "-h", "--help") for word in words):
        return list(words)
    plain = []
    for word in joined(words):
        name, _, text = word[2:].partition("=")
        if word.startswith("--"):
            dashed = name.replace("_", "-")
            ours = dashed in ("config-name", "config-path")
            word = f"--{dashed}={text}" if ours else f"++{name.replace('-', '_')}={text}"
        plain.append(word)
    return plain


def run(arguments: argparse.Namespace) -> int:
    if arguments.keys is not None:
        sys.stdout.write(table(arguments.keys))
        return 0
    words = list(arguments.words)
    if len(words) == 1 and " " in words[0] and ("=" in words[0] or " --" in words[0]):
        words = shlex.split(words[0])  # a command in quotes
    if arguments.module is not None:
        words = _behind(words, arguments.module)
    for name in ("config_name", "config_path"):
        if (value := getattr(arguments, name)) is not None:
            words.append(f"--{name}={value}")
    migration = _found(words)
    sys.stdout.write(as_yaml(migration))
    if not migration.refused:
        return 0
    print(f"verl_hpc: refused {len(migration.refused)} of verl's keys, see above", file=sys.stderr)
    return _REFUSED


def _behind(words: list[str], module: str) -> list[str]:
    """Return a command's words without its interpreter; `module` is the one of python3 -m.

    Raises:
        ConfigError: it is another module.
    """
    if module not in PROGRAMS:
        raise ConfigError(f"-m {module}: expected one of {', '.join(PROGRAMS)}")
    start = next((i for i, word in enumerate(words) if "=" in word), len(words))
    return words[start:]


def _of_program(words: Sequence[str]) -> list[str]:
    """Return the options of a tutorial's program run by python or torchrun, and its number of
    processes, as verl's keys.

    Raises:
        ConfigError: an option of the launcher that has no meaning here.
    """
    words = plain_words(words)
    start = next(i for i, word in enumerate(words) if word.endswith(".py"))
    options = []
    for word in words[1:start]:
        name, _, value = word.lstrip("+-").partition("=")
        if name in _COUNTS:
            options.append(f"{_COUNTS[name]}={value}")
        elif name not in _MEETING:
            expected = ", ".join([*_COUNTS, *_MEETING])
            raise ConfigError(f"{word}: before {words[start]} expected one of {expected}")
    return [*options, *words[start + 1 :]]


def _given(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """Return the `NAME=value` pairs before a script, and the words from the script on."""
    at = next((i for i, word in enumerate(words) if "=" not in word), 0)
    pairs = [word.partition("=") for word in words[:at]]
    variables = {name: value for name, _, value in pairs}
    if not all(map(str.isidentifier, variables)) or not _is_script(words[at:]):
        return {}, words
    return variables, words[at:]


def _is_script(words: Sequence[str]) -> bool:
    """Whether the first word is a script."""
    first = Path(words[0]) if words else Path()
    return first.suffix in _SCRIPTS or ("=" not in first.name and first.is_file())


def _found(words: Sequence[str]) -> Migration:
    given, words = _given(words)
    if not words:
        raise ConfigError("nothing to migrate: give a script, a YAML file, or verl's command line")
    first = Path(words[0])
    if first.name in _LAUNCHERS and any(word.endswith(".py") for word in words):
        return migrate(_of_program(words))
    if first.suffix in (".yaml", ".yml"):
        return migrate_file(first, words[1:])
    if _is_script(words):
        return migrate([*words_of(first, os.environ, given), *words[1:]], first.parent)
    if len(words) == 1 and "=" not in words[0]:
        raise ConfigError(f"{words[0]}: no such script or YAML file, and no key=value of verl's")
    return migrate(command_words(list(words)))


_WIDTH = 100
_TAKEN = {
    "fixed": "verl's default alone",
    "any": "any value is taken, none changes a number",
    "told": "taken, and told",
    "refused": "refused",
}


def as_yaml(found: Migration) -> str:
    """A run's file; above the settings, comments on keys that are refused or converted."""
    lines = ["# A run of verl_hpc, from verl's keys. What is not here is verl_hpc's default."]
    if found.ranks is not None:
        lines.append(f"# Ranks: {found.ranks}; mpiexec -n, srun --ntasks, or submit's nodes.")
    if found.refused:
        lines += ["#", "# Refused, and not in this file:"]
        lines += _comments(told_together(found.why_refused()))
    if found.notes:
        lines += ["#", "# To know:"]
        lines += _comments(told_together(found.notes.items()))
    return "\n".join(lines) + "\n" + write_yaml(found.tree())


def _comments(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from textwrap.wrap(
            text,
            _WIDTH,
            initial_indent="#   ",
            subsequent_indent="#       ",
            break_long_words=False,
        )


def table(word: str = "") -> str:
    """Return the rows whose key, or a setting of ours, has the word in it, by verl's section; and
    the older names that have it."""
    meanings = {
        row.key: _meaning(row)
        for row in sorted(rows(), key=_section)
        if any(word in name for name in (row.key, *row.ours))
    }
    names = {name: f"an older name of {key}" for name, key in older().renamed.items()}
    for name, one in older().tutorials.items():
        names[name] = f"a tutorial's name of {one.key}" + f" ({one.says})" * bool(one.says)
    meanings |= {name: text for name, text in names.items() if word in name}
    return "".join(f"{name}\n    {meaning}\n" for name, meaning in meanings.items())


def _section(row: Row) -> list[str]:
    parts = row.key.split(".")
    return parts[: 2 if parts[0] == "actor_rollout_ref" else 1]


def _meaning(row: Row) -> str:
    if row.ours:
        meaning = f"-> {', '.join(row.ours)}" + f"   ({row.says})" * bool(row.says)
    else:
        taken = _TAKEN["fixed" if row.also else row.fate] + "".join(f", or {v}" for v in row.also)
        meaning = f"{taken}: {row.says}" + f"; instead: {row.near}" * bool(row.near)
    return meaning + f" (verl had it until {row.until})" * bool(row.until)
