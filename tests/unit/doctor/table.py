"""Tables of what doctor has to say: a row for each state of a cluster, a column for each system."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from verl_hpc.runs.verdict import Verdict

SYSTEMS = {
    "LUMI": "lumi_g",
    "Leonardo": "leonardo_booster",
    "JUWELS": "juwels_booster",
    "Perlmutter": "perlmutter_gpu",
    "MN5": "marenostrum5_acc",
    "Roihu": "roihu_gpu",
    "Alps": "alps_clariden",
    "Alex": "alex_a100",
}
"""Heading of a column, and the name of its profile in slurm/systems."""
NOT_THERE = "-"
"""State of a check that a system does not have."""
_SAME = "all"


class Row(NamedTuple):
    """What a state means for the check that it breaks, on each system."""

    check: str
    state: str
    truth: dict[str, str]
    """ok, fails, unknown or `-` by the heading of the system."""

    @property
    def name(self) -> str:
        return f"{self.check}: {self.state}"


def parse(text: str) -> list[Row]:
    """Rows of `check: state | cell cell ...`, below a line of headings; `all CELL` fills a row."""
    head, *lines = [line for line in text.splitlines() if line.strip()]
    headings = head.split("|")[1].split()
    assert headings == list(SYSTEMS)
    rows = []
    for line in lines:
        name, _, rest = line.partition("|")
        check, _, state = name.partition(": ")
        cells = rest.split()
        if cells[0] == _SAME:
            cells = cells[1:] * len(SYSTEMS)
        rows.append(Row(check.strip(), state.strip(), dict(zip(headings, cells, strict=True))))
    return rows


class Cell(NamedTuple):
    """What doctor has said of one state of one system."""

    found: str
    """State of the check that the row breaks."""
    others: str
    """Other checks whose verdicts are not those of the healthy system; empty if all are."""

    def differs(self, truth: str) -> bool:
        return bool(self.others) or self.found != truth


def cell(
    row: Row, verdicts: Mapping[str, str], healthy: Mapping[str, str], follows: tuple[str, ...]
) -> Cell:
    """Compare verdicts, by check, with those of the healthy system.

    Args:
        row: what was broken.
        verdicts: of the broken system.
        healthy: of the system when nothing is broken.
        follows: checks that may fail with it, or cannot be asked.
    """
    free = {row.check, *follows}
    names = sorted((verdicts.keys() | healthy.keys()) - free)
    pairs = [(n, verdicts.get(n, NOT_THERE), healthy.get(n, NOT_THERE)) for n in names]
    others = [f"{name} {now}" for name, now, before in pairs if now != before]
    return Cell(verdicts.get(row.check, NOT_THERE), ", ".join(others))


def shown(rows: list[Row], cells: Mapping[tuple[str, str], Cell]) -> str:
    """The whole table as found; `found/truth!` is a cell that differs."""
    lines = [["", *SYSTEMS]]
    for row in rows:
        line = [row.name]
        for system, truth in row.truth.items():
            one = cells[row.name, system]
            text = one.found if one.found == truth else f"{one.found}/{truth}!"
            line.append(f"{text}, {one.others}!" if one.others else text)
        lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    pads = ([word.ljust(width) for word, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in pads)


def states(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """States by check."""
    return {verdict.check: verdict.state for verdict in verdicts}


def words(row: Row, verdicts: Iterable[Verdict], directory: Path) -> str:
    """What the check that a row breaks says, and the nodes that it blames.

    Paths are below a directory, and users have no numbers.
    """
    said = [
        f"{one} (blames {', '.join(one.nodes)})" if one.nodes else str(one)
        for one in verdicts
        if one.check == row.check
    ]
    text = (
        "\n    ".join([row.name, *said]).replace(f"{directory}/", "").replace(str(directory), ".")
    )
    return re.sub(r"(user|group) \d+", r"\1 N", text) + "\n"


def check_words(file: Path, text: str) -> None:
    assert text == file.read_text(), f"{file.name} should be:\n{text}"


def wrong(rows: list[Row], cells: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    """Names of the cells that differ from the truth."""
    for row in rows:
        for system, truth in row.truth.items():
            if cells[row.name, system].differs(truth):
                yield f"{system}, {row.name}"
