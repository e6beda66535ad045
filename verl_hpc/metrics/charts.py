"""Which charts a run has: those of every run, with the curves of all its roles, and its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from verl_hpc.metrics.log import Row
from verl_hpc.metrics.names import CHARTS, Chart

MOST_OWN = 24
"""Charts of metrics that only this run has."""
_MOST_CURVES = 7
_STANDARD_ROLES = ("actor", "critic")
_ELSEWHERE = frozenset(
    {
        "cpu_s",
        "perf",
        "prompt_length",
        "reshard",
        "response_length",
        "sft",
        "timing_s",
        "training",
        "val",
    }
)
"""First words of metrics that every run has, and of which `CHARTS` has what is worth a chart."""
_SET_METRIC = re.compile(r"val/([^/]+)/(accuracy|pass@(\d+))")
_FIELDS = frozenset({"step", "time", "not_finite"})
_SPREAD = ("mean", "max", "min")


def charts_of(rows: Sequence[Row]) -> list[Chart]:
    """The charts for these rows; of some there may be nothing to draw.

    A metric of a further role, such as cost_critic/vf_loss, stands beside the same one of the
    others. Evaluation sets have charts of their own. What no chart has, such as reward/margin,
    gets one of its own name; mean, max and min of one thing share it. Of the actor and the critic,
    and of what every run has, there are only the charts of `CHARTS`.
    """
    names = list(dict.fromkeys(name for row in rows for name in row if name not in _FIELDS))
    shared = [_with_roles(chart, names) for chart in CHARTS]
    behind = 1 + [chart.key for chart in shared].index("evaluation")
    shared[behind:behind] = _of_sets(names)
    drawn = {name for chart in shared for name in chart.curves}
    rest = [name for name in names if name not in drawn and _is_own(name, names)]
    return [*shared, *_own(rest)]


def _of_sets(names: Iterable[str]) -> list[Chart]:
    """Accuracy by evaluation set, and pass@k with the largest k of each set that is sampled."""
    accuracy: dict[str, str] = {}
    passed: dict[str, tuple[int, str]] = {}
    for name, found in ((name, _SET_METRIC.fullmatch(name)) for name in names):
        if found and found[3]:
            passed[found[1]] = max(passed.get(found[1], (0, "")), (int(found[3]), name))
        elif found:
            accuracy[name] = found[1]
    likely = {name: f"{of_set}, k = {k}" for of_set, (k, name) in passed.items()}
    charts = [
        Chart("evaluation_sets", "Accuracy by evaluation set", accuracy, least=0.0, most=1.0),
        Chart("evaluation_pass", "pass@k by evaluation set", likely, least=0.0, most=1.0),
    ]
    return [
        replace(chart, curves=dict(list(chart.curves.items())[:_MOST_CURVES]))
        for chart in charts
        if chart.curves
    ]


def _with_roles(chart: Chart, names: Iterable[str]) -> Chart:
    """The chart with the same metrics of all roles."""
    wanted = {
        _last(name)
        for name in chart.curves
        if _role(name) in _STANDARD_ROLES and name.count("/") == 1
    }
    curves = dict(chart.curves)
    for name in names:
        if name.count("/") == 1 and _last(name) in wanted and name not in curves:
            label = _role(name)
            curves[name] = name if label in curves.values() else label
    return replace(chart, curves=dict(list(curves.items())[:_MOST_CURVES]))


def _is_own(name: str, names: Sequence[str]) -> bool:
    role = _role(name)
    if role in _STANDARD_ROLES or role in _ELSEWHERE:
        return False
    parts = {f"{role}/pg_loss", f"{role}/vf_loss"}
    return name != f"{role}/loss" or parts.isdisjoint(names)


def _own(names: Iterable[str]) -> list[Chart]:
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        above, last = name.rpartition("/")[0], _last(name)
        title = above if above and last in _SPREAD else name
        groups.setdefault(title, {})[name] = last
    return [
        Chart(f"own_{i}_{re.sub('[^A-Za-z0-9]+', '_', title)[:60]}", title, curves)
        for i, (title, curves) in enumerate(list(groups.items())[:MOST_OWN], 1)
    ]


def _role(name: str) -> str:
    return name.partition("/")[0]


def _last(name: str) -> str:
    return name.rpartition("/")[2]
