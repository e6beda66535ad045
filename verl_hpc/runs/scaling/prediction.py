"""Compare the planner's predicted times of runs with measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.runs.scaling.efficiency import Measured
from verl_hpc.runs.scaling.page import markdown_table, shown

_LETTERS = 48


@dataclass(frozen=True)
class Predicted:
    """Predicted times of one run."""

    step_s: float
    operators: Mapping[str, float]
    """Seconds by operator."""


def prediction_block(
    runs: Sequence[Measured], predicted: Sequence[Predicted], unit: str, note: str
) -> list[str]:
    """Return the lines of the page's section.

    Args:
        runs: measured runs.
        predicted: prediction of each run.
        unit: what a rank is called.
        note: sentence about the prediction's factors.
    """
    pairs = sorted(zip(runs, predicted, strict=True), key=lambda pair: pair[0].ranks)
    lines = ["## Prediction", "", *_table(pairs, unit), ""]
    lines += ["```", *_bars(pairs), "```", ""]
    return [*lines, note, "", *_operators(pairs)]


_Pairs = Sequence[tuple[Measured, Predicted]]


def _table(pairs: _Pairs, unit: str) -> list[str]:
    header = ("run", unit, "s/step", "predicted", "off by", "efficiency", "predicted")
    rows = [
        (
            run.name,
            str(run.ranks),
            f"{run.step_s:.3g}",
            f"{mine.step_s:.3g}",
            f"{mine.step_s / run.step_s - 1:+.0%}",
            f"{_efficiency(pairs, run, run.step_s, False):.1%}",
            f"{_efficiency(pairs, run, mine.step_s, True):.1%}",
        )
        for run, mine in pairs
    ]
    return markdown_table(header, rows)


def _efficiency(pairs: _Pairs, run: Measured, seconds: float, of_model: bool) -> float:
    """Return the prompts per second and rank relative to the smallest run, for strong and weak
    scaling alike."""
    first, its = pairs[0]
    base = first.batch / (first.ranks * (its.step_s if of_model else first.step_s))
    return run.batch / (run.ranks * seconds) / base


def _bars(pairs: _Pairs) -> Iterator[str]:
    most = max(max(run.step_s, mine.step_s) for run, mine in pairs)
    width = max(len(run.name) for run, _ in pairs)
    for run, mine in pairs:
        for name, kind, seconds in (
            (run.name, "measured", run.step_s),
            ("", "predicted", mine.step_s),
        ):
            bar = "#" * max(round(_LETTERS * seconds / most), 1)
            yield f"{name:<{width}}  {kind:<9} {bar} {seconds:.3g} s"


def _operators(pairs: _Pairs) -> list[str]:
    names = list(dict.fromkeys(name for run, _ in pairs for name in run.operators))
    known = [name for name in names if any(name in mine.operators for _, mine in pairs)]
    header = ("operator, s/step: measured, predicted", *(run.name for run, _ in pairs))
    rows = [
        [name, *(f"{shown(run.operators, name)}, {shown(p.operators, name)}" for run, p in pairs)]
        for name in known
    ]
    return markdown_table(header, rows)
