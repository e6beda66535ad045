"""What settings there are: name, default, what each may be, and what it means.

WORD is a setting, a section, or a part of a name; without one, all settings of a run are listed.
Those of a site profile start with `site.`. With --config, what a file and overrides come to; with
both, also the value that a setting has there, and who gave it: the command line, the file, the
search for a layout that wrote the file, or nobody.

examples:
  python -m verl_hpc config
  python -m verl_hpc config --explain optimizer.lr
  python -m verl_hpc config --explain rollout
  python -m verl_hpc config --explain site.restarts
  python -m verl_hpc config --config configs/run/grpo_8b.yaml optimizer.lr=3e-6
  python -m verl_hpc config --config configs/run/grpo_8b.yaml --explain parallel
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.config.settings import SettingInfo
    from verl_hpc.planner.record import Record

_WIDTH = 100
_LONGEST = 60
_ALL = (
    "`python -m verl_hpc config` lists those of a run, `config --explain site` those of a site "
    "profile; the nearest"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--explain", metavar="WORD", help="only settings of this name, or below it, in full")
    add("--config", metavar="YAML", help="this file's settings, resolved; or those of --explain")
    add("overrides", nargs="*", metavar="field=value", help="settings over the file's")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.config.load import dump_config, load_config

    path, words = arguments.config, arguments.overrides
    if path is not None and arguments.explain is not None:
        text = _explained(arguments.explain) + _values(path, words, arguments.explain)
    elif path is not None:
        text = dump_config(load_config(path, words))
    elif words:
        raise ConfigError(
            f"{words[0]}: overrides belong to --config, which is not given; to read "
            "about a setting, write --explain NAME"
        )
    else:
        text = _explained(arguments.explain)
    sys.stdout.write(text)
    return 0


def _explained(word: str | None) -> str:
    from verl_hpc.cluster.site import Site
    from verl_hpc.config.explain import near_or_all
    from verl_hpc.config.reward import REWARD_FUNCTIONS, options_of
    from verl_hpc.config.run import RunConfig
    from verl_hpc.config.settings import settings_of

    settings = settings_of(RunConfig)
    if word is None:
        return _table(settings)
    for function in REWARD_FUNCTIONS:
        options = options_of(function)
        of_it = [] if options is None else settings_of(options, "reward.options.")
        settings += [replace(s, member=f"reward.function is {function}") for s in of_it]
    settings += settings_of(Site, "site.")
    chosen = [s for s in settings if s.name == word or s.name.startswith(f"{word}.")]
    chosen = chosen or [s for s in settings if word in s.name]
    if not chosen:
        names = dict.fromkeys(s.name for s in settings)
        last = word.rpartition(".")[2]
        same_last = [n for n in names if n.rpartition(".")[2] == last]
        near = get_close_matches(word[:_LONGEST], same_last or names, n=3, cutoff=0.0)
        raise ConfigError(f"{word}: no such setting; {near_or_all(word, near, _ALL)}")
    return "\n".join(map(_paragraph, chosen))


def _table(settings: Sequence[SettingInfo]) -> str:
    rows = [(s.name, _default(s), s.allowed + _condition(s)) for s in settings]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    widths[1] = min(widths[1], 24)
    lines = (f"{n:<{widths[0]}}  {d:<{widths[1]}}  {a}".rstrip() for n, d, a in rows)
    return "\n".join(lines) + "\n"


def _paragraph(setting: SettingInfo) -> str:
    head = f"{setting.name} = {_default(setting)}   ({setting.allowed})"
    head += _condition(setting)
    body = textwrap.indent(textwrap.fill(setting.meaning, _WIDTH - 4), "    ")
    return f"{head}\n{body}\n"


def _condition(setting: SettingInfo) -> str:
    return f"   if {setting.member}" if setting.member else ""


def _default(setting: SettingInfo) -> str:
    return "(needed)" if setting.default is None else setting.default


def _values(path: str, words: Sequence[str], name: str) -> str:
    """Return the values of a setting or section in a file, and where each comes from.

    Args:
        path: path of the file.
        words: overrides.
        name: name of the setting or section; a part of a name has no value.

    Raises:
        ConfigError: for the reasons of `load_config`.
    """

    from verl_hpc.config.load import load_config
    from verl_hpc.config.settings import leaves
    from verl_hpc.config.tree import parse_override
    from verl_hpc.planner.record import read_record

    config = load_config(path, words)
    record = read_record(Path(path))
    given = [parse_override(word)[0] for word in words]
    rows = [
        f"{setting} = {'null' if value is None else value}   "
        f"[{_origin(setting, is_set, given, record, path)}]"
        for setting, value, is_set in leaves(config)
        if setting == name or setting.startswith(f"{name}.")
    ]
    if record is not None and any(record.covers(row.partition(" = ")[0]) for row in rows):
        rows.append(f"found by: {record.by}\nwhy: {record.why}")
    return "".join(f"{row}\n" for row in ["", *rows]) if rows else ""


def _origin(name: str, is_set: bool, given: Sequence[str], record: Record | None, path: str) -> str:
    if any(name == word or name.startswith(f"{word}.") for word in given):
        return "command line"
    if record is not None and record.covers(name):
        return "plan"
    return path if is_set else "default"
