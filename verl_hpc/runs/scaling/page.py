"""Write the scaling page as Markdown, in the form that applications for computing time ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.runs.scaling.efficiency import (
    TARGET,
    Measured,
    Point,
    scales_to,
    strong_tables,
    weak_tables,
)

_SHOWN = (
    ("model", "model.path"),
    ("recipe", "recipe"),
    ("dtype", "model.dtype"),
    ("responses a prompt", "rollout.num_samples"),
    ("longest response", "rollout.max_response_tokens"),
    ("rollout engine", "rollout.engine"),
    ("seed", "seed"),
)


@dataclass(frozen=True)
class Window:
    """Range of the compared steps."""

    first: int
    last: int

    @property
    def num_steps(self) -> int:
        return self.last - self.first + 1


def unit_of(runs: Sequence[Measured]) -> str:
    """Return what a rank of these runs is called."""
    return "GPUs" if runs[0].on_gpus else "CPU ranks"


def render_page(
    runs: Sequence[Measured],
    window: Window,
    missing: Sequence[str],
    more: Sequence[Sequence[str]] = (),
) -> str:
    """Return the page as Markdown.

    Args:
        runs: runs that pass `check_comparable` and `check_tables`.
        window: steps over which means are taken.
        missing: sentences about what the page lacks.
        more: further sections, as lines, before what is missing.
    """
    unit = unit_of(runs)
    blocks = [
        ["# Scaling", "", *_setting(runs, window)],
        *(_strong(batch, points, unit) for batch, points in strong_tables(runs).items()),
        *(_weak(share, points, unit) for share, points in weak_tables(runs).items()),
        _operators(sorted(runs, key=lambda run: (run.ranks, run.batch))),
        _cost(runs, unit),
        *map(list, more),
    ]
    if missing:
        blocks.append(["## Missing", "", *(f"- {sentence}" for sentence in missing)])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _setting(runs: Sequence[Measured], window: Window) -> Iterator[str]:
    settings = runs[0].settings
    rows = [(label, settings[name]) for label, name in _SHOWN if name in settings]
    yield from markdown_table(("what", "value"), [(label, str(value)) for label, value in rows])
    yield ""
    yield (
        f"Wall time of a step is the mean of the steps {window.first} to {window.last} of every "
        f"run ({window.num_steps} steps). Initialisation and the steps before are excluded, and so "
        "are evaluation and checkpoints. Efficiency is p_b T_b / (p_N T_N) against the smallest "
        f"size b; {TARGET:.0%} is what centres ask for."
    )


def _strong(batch: int, points: Sequence[Point], unit: str) -> list[str]:
    header = (
        "run", "nodes", unit, "s/step", "shortest to longest", "ideal s/step", "speed-up",
        "ideal", "efficiency", f">= {TARGET:.0%}", "tokens/s",
    )  # fmt: skip
    rows = [
        (
            *_size(point.run),
            *_seconds(point),
            f"{point.speedup:.2f}",
            f"{point.ideal_speedup:.2f}",
            *_verdict(point),
        )
        for point in points
    ]
    title = f"## Strong scaling: {batch} prompts a step"
    return [title, "", *markdown_table(header, rows), "", _sentence(points, unit)]


def _weak(share: float, points: Sequence[Point], unit: str) -> list[str]:
    header = (
        "run", "nodes", unit, "s/step", "shortest to longest", "ideal s/step", "prompts a step",
        "efficiency", f">= {TARGET:.0%}", "tokens/s",
    )  # fmt: skip
    rows = [
        (*_size(point.run), *_seconds(point), str(point.run.batch), *_verdict(point))
        for point in points
    ]
    title = f"## Weak scaling: {share:g} prompts a step on each rank"
    return [title, "", *markdown_table(header, rows), "", _sentence(points, unit)]


def _size(run: Measured) -> tuple[str, str, str]:
    return run.name, str(run.nodes), str(run.ranks)


def _seconds(point: Point) -> tuple[str, str, str]:
    seconds = point.run.seconds
    spread = f"{min(seconds):.3g} to {max(seconds):.3g}"
    return f"{point.run.step_s:.3g}", spread, f"{point.ideal_s:.3g}"


def _verdict(point: Point) -> tuple[str, str, str]:
    tokens = point.run.tokens_per_s
    return (
        f"{point.efficiency:.1%}",
        "yes" if point.is_enough else "no",
        "-" if tokens is None else f"{tokens:,.0f}",
    )


def _sentence(points: Sequence[Point], unit: str) -> str:
    largest = max(point.run.ranks for point in points)
    reached = scales_to(points)
    if reached == largest:
        return f"Efficiency is at least {TARGET:.0%} at every size, up to {largest} {unit}."
    return f"Efficiency is at least {TARGET:.0%} up to {reached} {unit}, and below it beyond."


def _operators(runs: Sequence[Measured]) -> list[str]:
    """Return a table of seconds by operator, in the order of the first run, which shows where a
    size loses."""
    names = list(dict.fromkeys(name for run in runs for name in run.operators))
    header = ("operator, s/step", *(run.name for run in runs))
    rows = [(name, *(shown(run.operators, name) for run in runs)) for name in names]
    return ["## Time by operator", "", *markdown_table(header, rows)]


def _cost(runs: Sequence[Measured], unit: str) -> list[str]:
    hours = "GPU-hours" if runs[0].on_gpus else "rank-hours"
    header = ("run", unit, f"{hours} of all its steps", f"{hours} per 1,000 compared steps")
    rows = [
        (
            run.name,
            str(run.ranks),
            f"{run.rank_hours:.3g}",
            f"{run.ranks * run.step_s * 1000 / 3600:.3g}",
        )
        for run in runs
    ]
    return ["## Cost", "", *markdown_table(header, rows)]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def shown(operators: Mapping[str, float], name: str) -> str:
    """Return an operator's seconds, or - if a run has no such operator."""
    return f"{operators[name]:.3g}" if name in operators else "-"


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
    return [*lines, note, "", *_predicted_operators(pairs)]


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


def _predicted_operators(pairs: _Pairs) -> list[str]:
    names = list(dict.fromkeys(name for run, _ in pairs for name in run.operators))
    known = [name for name in names if any(name in mine.operators for _, mine in pairs)]
    header = ("operator, s/step: measured, predicted", *(run.name for run, _ in pairs))
    rows = [
        [name, *(f"{shown(run.operators, name)}, {shown(p.operators, name)}" for run, p in pairs)]
        for name in known
    ]
    return markdown_table(header, rows)
