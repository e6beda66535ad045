"""Show the results of cases as a table on a terminal and as one page with curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from verl_hpc.metrics.names import Chart
from verl_hpc.metrics.report import page
from verl_hpc.metrics.sections import figure, section, table_of
from verl_hpc.metrics.text import duration, number
from verl_hpc.reproduction.case import Case, Row
from verl_hpc.reproduction.run import Result

HEADER = ("figure", "theirs", "ours", "tolerance", "")
Outcome = tuple[Case, Result]


def terminal_lines(case: Case, result: Result) -> Iterator[str]:
    """Yield a case's title, its source and its rows, and why it was not run or failed."""
    yield f"{case.name}: {case.file.title}"
    yield f"  source: {case.file.source}"
    cells = [HEADER, *_cells(case, result)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
    for text in _notes(case, result):
        yield from (f"  {line}" for line in text.splitlines())


def results_page(outcomes: Sequence[Outcome]) -> str:
    """Return a whole page: every case with its table, reasons and curves."""
    verdicts = [result.verdict(row) for case, result in outcomes for row in case.file.rows]
    counts = {word: verdicts.count(word) for word in dict.fromkeys(verdicts)}
    words = "".join(f"<span>{count} {escape(word)}</span>" for word, count in counts.items())
    body = "".join(_section(case, result) for case, result in outcomes)
    return page("Published results, reproduced", words, "", body)


def _section(case: Case, result: Result) -> str:
    ran = (
        f"Ran for {duration(result.seconds)} until "
        f"{datetime.fromtimestamp(result.ended, UTC):%Y-%m-%d %H:%M} UTC, by verl_hpc "
        f"{result.version}."
        if result.ended
        else ""
    )
    parts = [
        f"<p>Source: {escape(case.file.source)}. {escape(ran)}</p>",
        table_of(HEADER, _cells(case, result)),
        *(f"<pre>{escape(text)}</pre>" for text in _notes(case, result)),
        '<div class="charts">',
        *(
            figure(Chart(title, {}), curves, wide=False, across="step")
            for title, curves in result.curves.items()
        ),
        "</div>",
    ]
    return section(f"{escape(case.name)}: {escape(case.file.title)}", "".join(parts))


def _cells(case: Case, result: Result) -> list[tuple[str, ...]]:
    return [
        (row.name, row.theirs, _ours(row, result), tolerance(row), result.verdict(row))
        for row in case.file.rows
    ]


def _ours(row: Row, result: Result) -> str:
    value = result.values.get(row.name)
    return "not run" if result.not_run else "none" if value is None else number(value)


def tolerance(row: Row) -> str:
    """Write the bounds of a row."""
    low, high = row.within
    if low is None:
        return f"at most {high:g}"
    if high is None:
        return f"at least {low:g}"
    return f"{low:g} to {high:g}" if low < high else f"{low:g}"


def _notes(case: Case, result: Result) -> Iterator[str]:
    """Yield why a case was not run or failed, and the reasons of rows that differ."""
    if result.not_run:
        yield f"not run: {result.not_run}"
    if result.failed:
        yield f"failed: {result.failed}"
    for row in case.file.rows:
        if row.reason and result.verdict(row).startswith("differs"):
            yield f"{row.name}: {row.reason}"
