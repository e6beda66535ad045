"""A migration as a file of ours, and the table as a page.

`python -m verl_hpc.migration.page docs/migrating_from_verl.md` writes the page's tables anew.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.migration.legacy import COMPUTED, RENAMED, TUTORIAL
from verl_hpc.migration.reference import reference
from verl_hpc.migration.row import Row
from verl_hpc.migration.table import ROWS
from verl_hpc.migration.translate import Migration, told_together

_WIDTH = 100
HEADING = "## The keys, by group\n\n"


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
    """Rows whose key has the word in it, a line each."""
    rows = [row for row in ROWS if word in row.key or any(word in name for name in row.ours)]
    return "".join(f"{row.key}\n    {_meaning(row)}\n" for row in rows)


def _meaning(row: Row) -> str:
    if row.fate in ("honoured", "agrees"):
        return f"-> {', '.join(row.ours)}" + f"   ({row.says})" * bool(row.says)
    taken = _TAKEN[row.fate]
    return f"{taken}: {row.says}" + f"; instead: {row.near}" * bool(row.near)


_TAKEN = {
    "fixed": "verl's default alone",
    "any": "any value is taken, none changes a number",
    "refused": "refused",
}


def groups() -> dict[str, list[Row]]:
    """Rows by the section of verl that they are of."""
    found: dict[str, list[Row]] = {}
    for row in ROWS:
        parts = row.key.split(".")
        length = 2 if parts[0] == "actor_rollout_ref" and len(parts) > 2 else 1
        found.setdefault(".".join(parts[:length]), []).append(row)
    return found


def markdown() -> str:
    """The tables of docs/migrating_from_verl.md."""
    count, commit = len(reference().keys), reference().commit[:10]
    head = f"{count} keys of verl's two reference configurations, at its commit {commit}, and"
    lines = [f"{head} those that they do not list.", ""]
    for name, rows in groups().items():
        honoured = [row for row in rows if row.fate in ("honoured", "agrees")]
        others = [row for row in rows if row.fate in ("fixed", "refused")]
        free = [row for row in rows if row.fate == "any"]
        lines += [f"### {name}", ""]
        if honoured:
            lines += ["| verl's key | ours | how |", "|---|---|---|"]
            for row in honoured:
                ours = ", ".join(f"`{setting}`" for setting in row.ours)
                lines.append(f"| `{row.key}` | {ours} | {row.says} |")
            lines.append("")
        if others:
            lines += ["| verl's default alone | why | instead |", "|---|---|---|"]
            lines += [f"| `{row.key}` | {row.says} | {row.near} |" for row in others]
            lines.append("")
        if free:
            lines += ["| any value is taken | why none changes a number |", "|---|---|"]
            lines += [f"| `{row.key}` | {row.says} |" for row in free]
            lines.append("")
    lines += ["### Older names, and those of tutorials", "", "| name | verl's key |", "|---|---|"]
    lines += [f"| `{old}` | `{new}` |" for old, new in RENAMED.items()]
    lines += [f"| `{old}` | {', '.join(f'`{n}`' for n in new)} |" for old, new in TUTORIAL.items()]
    lines += [
        f"| `{old}` | {', '.join(f'`{n}`' for n in one.keys)}: {one.says} |"
        for old, one in COMPUTED.items()
    ]
    return "\n".join(lines) + "\n"


def renewed(page: str) -> str:
    """The page, its tables written anew below the heading that they have."""
    before, heading, after = page.partition(HEADING)
    said = after.partition("\n\n")[0] if heading else ""
    return f"{before}{HEADING}{said}\n\n{markdown()}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")
