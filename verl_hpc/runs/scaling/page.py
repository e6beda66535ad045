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


def render_page(runs: Sequence[Measured], window: Window, missing: Sequence[str]) -> str:
    """Return the page as Markdown.

    Args:
        runs: runs that pass `check_comparable` and `check_tables`.
        window: steps over which means are taken.
        missing: sentences about what the page lacks.
    """
    unit = unit_of(runs)
    blocks = [
        ["# Scaling", "", *_setting(runs, window)],
        *(_strong(batch, points, unit) for batch, points in strong_tables(runs).items()),
        *(_weak(share, points, unit) for share, points in weak_tables(runs).items()),
        _operators(sorted(runs, key=lambda run: (run.ranks, run.batch))),
        _cost(runs, unit),
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
