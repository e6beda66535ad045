"""Choose a run's charts: the standard ones with curves of all roles, and those of its own
metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from verl_hpc.metrics.log import Row
from verl_hpc.metrics.names import CHARTS, CORRECTION_WEIGHT, LAG_MAX, Chart

MOST_OWN = 24
"""Most charts of metrics that only this run has."""
_MOST_CURVES = 7
_STANDARD_ROLES = ("actor", "critic")
_ELSEWHERE = frozenset(
    (
        *("cpu_s", "perf", "prompt_length", "reshard", "response_length"),
        *("set", "sft", "task", "timing_s", "training", "val"),
    )
)
"""First words of standard metrics, of which `CHARTS` has those worth a chart."""
_SET_METRIC = re.compile(r"val/([^/]+)/(accuracy|pass@(\d+))")
_PART_METRIC = re.compile(r"(task|set)/([^/]+)/(critic/score/mean|weight)")
_FIELDS = frozenset({"step", "time", "not_finite"})
_SPREAD = ("mean", "max", "min")


def charts_of(rows: Sequence[Row]) -> list[Chart]:
    """Return the charts for these rows; some may have nothing to draw.

    A metric of a further role, such as cost_critic/vf_loss, shares a chart with the same one of the
    others. Evaluation sets have charts of their own. Other metrics, such as reward/margin, get a
    chart each; mean, max and min of one thing share one. The actor, the critic and standard metrics
    only have the charts of `CHARTS`. How far engine and trainer are apart (rollout_corr/) is drawn
    where responses lag or tokens are weighed for it; elsewhere it is rounding.
    """
    names = list(dict.fromkeys(name for row in rows for name in row if name not in _FIELDS))
    shared = [_with_roles(chart, names) for chart in CHARTS]
    behind = 1 + [chart.title for chart in shared].index("Evaluation score")
    shared[behind:behind] = [*_of_tasks(names), *_of_sets(names)]
    drawn = {name for chart in shared for name in chart.curves}
    if CORRECTION_WEIGHT not in names and not any(row.get(LAG_MAX) for row in rows):
        drawn |= {name for name in names if _role(name) == "rollout_corr"}
    rest = [name for name in names if name not in drawn and _is_own(name, names)]
    return [*shared, *_own(rest)]


def _of_sets(names: Iterable[str]) -> list[Chart]:
    """Return charts of accuracy by evaluation set, and of pass@k with each sampled set's largest
    k."""
    accuracy: dict[str, str] = {}
    passed: dict[str, tuple[int, str]] = {}
    for name, match in ((name, _SET_METRIC.fullmatch(name)) for name in names):
        if match and match[3]:
            passed[match[1]] = max(passed.get(match[1], (0, "")), (int(match[3]), name))
        elif match:
            accuracy[name] = match[1]
    likely = {name: f"{of_set}, k = {k}" for of_set, (k, name) in passed.items()}
    charts = [
        Chart("Accuracy by evaluation set", accuracy, least=0.0, most=1.0),
        Chart("pass@k by evaluation set", likely, least=0.0, most=1.0),
    ]
    return [
        replace(chart, curves=dict(list(chart.curves.items())[:_MOST_CURVES]))
        for chart in charts
        if chart.curves
    ]


def _of_tasks(names: Iterable[str]) -> list[Chart]:
    """Return charts of the scores of tasks and of mixed data sets, and of tasks' shares of the
    steps."""
    curves: dict[tuple[str, str], dict[str, str]] = {}
    for name, match in ((name, _PART_METRIC.fullmatch(name)) for name in names):
        if match:
            curves.setdefault((match[1], match[3]), {})[name] = match[2]
    titles = {
        ("task", "critic/score/mean"): "Score by task",
        ("task", "weight"): "Share of the steps by task",
        ("set", "critic/score/mean"): "Score by data set",
    }
    return [
        Chart(title, dict(list(curves[part, key].items())[:_MOST_CURVES]))
        for (part, key), title in titles.items()
        if (part, key) in curves
    ]


def _with_roles(chart: Chart, names: Iterable[str]) -> Chart:
    """Return the chart with the same metrics of all roles."""
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
    return [Chart(title, curves) for title, curves in list(groups.items())[:MOST_OWN]]


def _role(name: str) -> str:
    return name.partition("/")[0]


def _last(name: str) -> str:
    return name.rpartition("/")[2]
