"""Show the timeline of a few steps as HTML: which rank ran which operator when, and what sessions
with programs and environments did meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from verl_hpc.metrics.lanes import Lane, lanes
from verl_hpc.metrics.names import WAIT
from verl_hpc.metrics.sections import COLOURS, OPERATOR_COLOURS, key, operator_colours
from verl_hpc.metrics.series import OTHER
from verl_hpc.metrics.session_lanes import SESSION_COLOURS, SESSIONS, session_lanes
from verl_hpc.metrics.text import duration
from verl_hpc.metrics.timeline import Interval, read_timeline, step_range

TITLE = "Timeline"
NEWEST_STEPS = 3
"""Newest steps that are shown by default."""
MAX_STEPS = 20
_EVERYWHERE = ("", "all")
"""Placements that are not named for a rank with others."""


def newest_steps(run_directory: Path) -> range:
    """Return the newest few steps of a run's timeline; empty without one."""
    known = step_range(run_directory)
    if known is None:
        return range(0)
    oldest, newest = known
    return range(max(oldest, newest - NEWEST_STEPS + 1), newest + 1)


def timeline_card(run_directory: Path, steps: range, seconds: Mapping[str, float]) -> str:
    """Return lanes of the ranks over some steps, with a legend; empty if no rank ran any of them.

    Args:
        run_directory: the run's directory.
        steps: steps to show, at most `MAX_STEPS`.
        seconds: seconds of a mean step by operator, longest first, by which other sections of the
            page choose colours.
    """
    intervals, pause = _shown(run_directory, steps[-MAX_STEPS:])
    if not intervals:
        return ""
    zero = min(interval.start for interval in intervals)
    colours = _colours(seconds, _longest_first(intervals))
    shown = {interval.operator for interval in intervals}
    used = {name: colour for name, colour in colours.items() if name in shown}
    if shown - set(colours):
        used[OTHER] = colours[OTHER]
    marks = {f"step {step}": start - zero for step, start in _starts(intervals).items()}
    rows, note = _lanes(intervals, zero), _note(intervals, pause)
    if sessions := session_lanes(run_directory, [*_starts(intervals)], zero):
        rows, note = [*rows, *sessions], f"{note} {SESSIONS}"
        colours, used = colours | SESSION_COLOURS, used | SESSION_COLOURS
    drawn = lanes(TITLE, rows, colours, colours[OTHER], marks)
    return f'<div class="card">{drawn}{key(used)}<p>{note}</p></div>'


def _note(intervals: Sequence[Interval], pause: float) -> str:
    first = min(intervals, key=lambda interval: interval.start)
    words = (
        f"Seconds since step {first.step} began, by the clock of each rank's node. A vertical line "
        "is where the first rank begins a step; the number in a bar is its step."
    )
    if pause:
        words += f" What was before a pause of {duration(pause)} is left out."
    return words


def _shown(run_directory: Path, steps: range) -> tuple[list[Interval], float]:
    """Return the steps' intervals after their last pause, and that pause in seconds.

    Work ahead overlaps the step before: without that step, its end would look like a pause.
    """
    around = range(steps.start - 1, steps.stop + 1) if steps else steps
    known = read_timeline(run_directory, around)
    chosen = [interval for interval in known if interval.step in steps]
    begin = min((interval.start for interval in chosen), default=0.0)
    end = max((interval.stop for interval in chosen), default=0.0)
    beside = [i for i in known if i.start <= end and i.stop >= begin]
    kept, pause = after_last_pause(beside)
    return [interval for interval in kept if interval.step in steps], pause


def after_last_pause(intervals: Sequence[Interval]) -> tuple[list[Interval], float]:
    """Return the intervals after the last pause of all ranks that was longer than their work after
    it, as between two starts of a run, and that pause in seconds, 0 without one."""
    in_time = sorted(intervals, key=lambda interval: interval.start)
    stops: list[float] = []
    for interval in in_time:
        stops.append(max(interval.stop, stops[-1] if stops else interval.stop))
    # From the newest gap back: a pause is longer than all work after it, and than a second.
    for i in range(len(in_time) - 1, 0, -1):
        pause, worked = in_time[i].start - stops[i - 1], stops[-1] - in_time[i].start
        if pause > max(worked, 1.0):
            return [interval for interval in intervals if interval.start > stops[i - 1]], pause
    return list(intervals), 0.0


def _lanes(intervals: Sequence[Interval], zero: float) -> list[Lane]:
    """Return lanes grouped by placements, those of the lowest rank first."""
    by_rank: dict[int, list[Interval]] = {}
    for interval in intervals:
        by_rank.setdefault(interval.rank, []).append(interval)
    groups: dict[str, list[int]] = {}
    for rank in sorted(by_rank):
        groups.setdefault(_placements(by_rank[rank]), []).append(rank)
    return [
        Lane(f"{rank}", [_since(interval, zero) for interval in by_rank[rank]], name)
        for name, ranks in groups.items()
        for rank in ranks
    ]


def _placements(intervals: Sequence[Interval]) -> str:
    names = {interval.placement for interval in intervals if interval.placement}
    return " + ".join(sorted(names.difference(_EVERYWHERE) or names))


def _since(interval: Interval, zero: float) -> Interval:
    """Return the interval with its times in seconds since `zero`."""
    return replace(interval, start=interval.start - zero, stop=interval.stop - zero)


def _longest_first(intervals: Iterable[Interval]) -> list[str]:
    """Return the operators, that of most seconds first."""
    total: dict[str, float] = {}
    for one in intervals:
        total[one.operator] = total.get(one.operator, 0.0) + one.stop - one.start
    return sorted(total, key=total.__getitem__, reverse=True)


def _starts(intervals: Sequence[Interval]) -> dict[int, float]:
    starts: dict[int, float] = {}
    for interval in intervals:
        starts[interval.step] = min(interval.start, starts.get(interval.step, interval.start))
    return starts


def _colours(page: Mapping[str, float], own: Sequence[str]) -> dict[str, str]:
    """Return the page's colours, with free ones for the longest of the other operators."""
    colours = operator_colours(page)
    free = [colour for colour in reversed(COLOURS) if colour not in colours.values()]
    usual_first = sorted(own, key=lambda name: name not in OPERATOR_COLOURS)
    for name in usual_first:
        if name in colours or name == WAIT or not free:
            continue
        usual = OPERATOR_COLOURS.get(name)
        colours[name] = usual if usual in free else free[0]
        free.remove(colours[name])
    return colours
