"""A migration as a file of ours, and the table, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.migration.legacy import older
from verl_hpc.migration.row import Row
from verl_hpc.migration.table import rows
from verl_hpc.migration.translate import Migration, told_together

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
