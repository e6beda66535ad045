"""`plan --budget HOURS --until DATE`: find the layout, the steps and the number of chained jobs."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from verl_hpc.budget.days import DAY_S, day_of, parse_day
from verl_hpc.budget.forecast import (
    FEWEST_WAITS,
    REPLAYS,
    Chain,
    Links,
    Wait,
    most_steps,
    waits_like,
)
from verl_hpc.cli.plan_inputs import planner_of, profile_and_config
from verl_hpc.cli.plan_runs import SKIP, ranks_of
from verl_hpc.cluster.site import Site
from verl_hpc.cluster.time_limit import parse_time, signal_lead
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ClusterError, ConfigError, VerlHpcError
from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.names import STEP_SECONDS
from verl_hpc.metrics.series import timed
from verl_hpc.metrics.text import duration, plain
from verl_hpc.placement.layouts import layouts_of
from verl_hpc.planner.search.sizes import node_counts
from verl_hpc.runs.lives import read_lives
from verl_hpc.slurm.accounting import Life, accounts_of, partition_lives, shortly
from verl_hpc.slurm.tools import Runner

TIME = "24:00:00"
_START_S = 600.0
_DAYS = 30
Band = tuple[float, float]
"""Seconds between which nine of ten steps are."""


@dataclass(frozen=True)
class Choice:
    """A number of nodes, and the chain of jobs that fits; None if not even one step does."""

    layouts: str
    links: Links
    chain: Chain | None
    steps_band: tuple[int, int] | None = None
    """Steps that fit if a step takes as long as the slow and the quick end of its band; None where
    that is not known."""


@dataclass(frozen=True)
class Question:
    """A run and the limits that it has to fit into, with notes for the answer."""

    config: RunConfig
    site: Site
    limit: str
    hours: float | None
    until: float | None
    now: float
    notes: list[str] = field(default_factory=list)

    @property
    def on_gpus(self) -> bool:
        return bool(self.site.gpus_per_node)

    @property
    def unit(self) -> str:
        return "GPU-hours" if self.on_gpus else "core-hours"

    def links(self, nodes: int, step_s: float, start_s: float) -> Links:
        """Return the jobs of a chain. Raises: ConfigError: they have no time for a step."""
        limit_s = parse_time(self.limit)
        lead_s, _ = signal_lead(limit_s, self.site.signal_lead_s)
        devices = nodes * (self.site.gpus_per_node or self.site.cores_per_node)
        links = Links(nodes, devices, step_s, start_s, limit_s - lead_s)
        if links.most_steps < 1:
            raise ConfigError(
                f"--time {self.limit}: a job has {links.usable_s:.0f} s until it is told to stop; "
                f"it starts in {start_s:.0f} s, and a step takes {step_s:.0f} s; give more"
            )
        return links

    def choose(
        self, layouts: str, links: Links, band: Band | None, history: Sequence[Life]
    ) -> Choice:
        chain = self._chain(links, history)
        if band is None:
            return Choice(layouts, links, chain)
        slow, quick = (self._chain(replace(links, step_s=s), history) for s in reversed(band))
        return Choice(layouts, links, chain, (_steps_of(slow), _steps_of(quick)))

    def _chain(self, links: Links, history: Sequence[Life]) -> Chain | None:
        """Return the longest chain that fits; None if not one step does."""
        if links.most_steps < 1:
            return None
        seconds = None if self.until is None else self.until - self.now
        waits = waits_like(history, links.nodes, self.on_gpus)
        return most_steps(self.config.steps, links, waits, self.hours, seconds)


def _steps_of(chain: Chain | None) -> int:
    return 0 if chain is None else chain.steps


def run_budget(
    arguments: argparse.Namespace, now: float | None = None, run: Runner | None = None
) -> int:
    """Print the answer; return 0 if all steps of the configuration fit, else 1.

    Args:
        arguments: arguments of `plan`, with --budget or --until.
        now: seconds since the epoch; None asks the clock.
        run: runs sacct; None asks the cluster of the site profile.
    """
    question = _question(arguments, time.time() if now is None else now)
    sizes = [_measured(arguments.like, question)] if arguments.like is not None else None
    sizes = sizes or list(_planned(arguments, question))
    history = _history(question, run or accounts_of(question.site.cluster))
    choices = [question.choose(*size, history or []) for size in sizes]
    best = max((c for c in choices if c.chain), key=_worth, default=None)
    if best and history is not None:
        question.notes.append(_told(waits_like(history, best.links.nodes, question.on_gpus)))
    tell = _as_json if arguments.json else _as_text
    print("\n".join(tell(question, choices, best)))
    return 0 if best and best.chain and best.chain.steps >= (question.config.steps or 1) else 1


def _question(arguments: argparse.Namespace, now: float) -> Question:
    until = None if arguments.until is None else parse_day(arguments.until, "--until") + DAY_S
    if until is not None and until <= now:
        raise ConfigError(f"--until {arguments.until}: that day is over")
    if arguments.budget is not None and not 0 < arguments.budget < math.inf:
        raise ConfigError(f"--budget {arguments.budget:.15g}: a number of hours above 0")
    profile, config, _ = profile_and_config(arguments)
    return Question(config, profile.site, arguments.time or TIME, arguments.budget, until, now)


def _measured(path: Path, question: Question) -> tuple[str, Links, Band | None]:
    """Return the seconds per step and the nodes of a run."""
    rows = [row for row in timed(read_metrics(path)) if row["step"] > SKIP]
    if not rows:
        raise ConfigError(f"--like {path}: no step after the first {SKIP}; let it do a few more")
    step_s = sum(row[STEP_SECONDS] for row in rows) / len(rows)
    ready = [x.ready - x.began for x in read_lives(path) if x.ready is not None]
    start_s = ready[-1] if ready else _START_S
    question.notes.append(
        f"A step takes {step_s:.1f} s, as {len(rows)} steps of {path} did with their saves and "
        f"evaluations, and a start {start_s:.0f} s."
    )
    return "as it is", question.links(ranks_of(path)[1], step_s, start_s), None


def _planned(
    arguments: argparse.Namespace, question: Question
) -> Iterator[tuple[str, Links, Band | None]]:
    """Yield the time model's predictions for every number of nodes to compare that fits."""
    planner = planner_of(arguments)
    if arguments.nodes is not None:
        counts = [arguments.nodes]
    elif arguments.max_nodes is not None:
        counts = node_counts(arguments.max_nodes)
    else:
        counts = [planner.on_fewest().num_nodes]
    refused: VerlHpcError = ConfigError("it fits on no number of nodes")
    num_fitting, basis = 0, ""
    # A number of nodes that does not fit is left out; if none fits, the last reason is raised.
    for nodes in counts:
        try:
            plan = planner.search([nodes]) if arguments.search else planner.on(nodes)
        except VerlHpcError as error:
            refused = error
            continue
        if not plan.fits:
            refused = ConfigError(f"{nodes} nodes: {plan.why_not()}")
            continue
        try:
            links = question.links(nodes, plan.step.seconds, _START_S)
        except ConfigError as error:
            refused = error
            question.notes.append(f"{nodes} nodes are left out: {error}.")
            continue
        num_fitting, basis = num_fitting + 1, plan.step.basis.sentence
        text = "; ".join(
            f"{name} " + " ".join(f"{axis}={n}" for axis, n in axes.items() if n != 1)
            for name, axes in layouts_of(plan.layouts).items()
        )
        yield text, links, plan.step.band
    if not num_fitting:
        raise refused
    question.notes.append(
        f"Seconds of a step are the time model's, without evaluations and saves, and a start takes "
        f"{_START_S:.0f} s; --like RUN takes what a run has measured. {basis} Below "
        '"nine of ten" are the steps that fit then.'
    )


def _history(question: Question, run: Runner) -> list[Life] | None:
    """Return the partition's recent jobs; None, with a note, without Slurm's accounts."""
    try:
        return partition_lives(question.site.partition, question.now - DAY_S * _DAYS, run)
    except ClusterError as error:
        why = shortly(error)
        question.notes.append(f"Nothing is known of the queue ({why}): waits are left out.")
        return None


def _told(waits: Sequence[Wait]) -> str:
    if len(waits) < FEWEST_WAITS:
        return "Too few jobs have waited lately to forecast the queue: waits are left out."
    mean = duration(sum(wait.seconds for wait in waits) / len(waits))
    return (
        f"The chain was replayed from {REPLAYS} moments of the last {_DAYS} days, in which "
        f"{len(waits)} such jobs waited {mean} each: half of the replays are done by the first "
        "date, all of them by the second. A queue that is fuller than it was then takes longer."
    )


def _worth(choice: Choice) -> tuple[int, float]:
    """Sort key: most steps first, then fewest hours."""
    assert choice.chain is not None
    return choice.chain.steps, -choice.chain.hours


def _as_text(question: Question, choices: Sequence[Choice], best: Choice | None) -> Iterator[str]:
    wanted = question.config.steps
    within = [] if question.hours is None else [f"{question.hours:,.15g} {question.unit}"]
    within += [] if question.until is None else [f"until {day_of(question.until - 1)}"]
    steps = "as many steps as fit" if wanted is None else f"{wanted} steps"
    yield f"{question.config.name}: {steps}, {' and '.join(within)}, in jobs of {question.limit}"
    head = f"  nodes  s a step   steps    nine of ten  jobs  {question.unit:>10}"
    yield f"{head}     likely by  at the latest  layout"
    for one in choices:
        start = f"  {one.links.nodes:>5}  {one.links.step_s:>8.1f}"
        if one.chain is None:
            yield f"{start}  not one step fits"
            continue
        _, middle, late = map(day_of, one.chain.ends(question.now))
        steps = f"{one.chain.steps:>6}  {_range(one):>13}"
        figures = f"{steps}  {one.chain.links:>4}  {one.chain.hours:>10,.1f}"
        yield f"{start}  {figures}  {middle:>12}  {late:>13}  {one.layouts}"
    if best is not None and best.chain is not None:
        nodes, chain = best.links.nodes, best.chain
        between = "" if best.steps_band is None else f" (nine of ten: {_range(best)})"
        if wanted and chain.steps < wanted:
            yield f"not all steps fit: {chain.steps} of {wanted} do, on {nodes} nodes{between}"
        hours = question.hours if question.on_gpus else None
        ceiling = "" if hours is None else f" runtime.max_gpu_hours={plain(hours)}"
        yield (
            f"submit with: --nodes {nodes} --time {question.limit} --resume-by chain "
            f"--max-restarts {chain.links - 1} steps={chain.steps}{ceiling}"
        )
    yield from question.notes


def _range(one: Choice) -> str:
    """Return the steps that fit in nine of ten cases."""
    return "-" if one.steps_band is None else "{:,} to {:,}".format(*one.steps_band)


def _as_json(question: Question, choices: Sequence[Choice], best: Choice | None) -> Iterator[str]:
    def told(one: Choice) -> dict[str, object]:
        ends = None if one.chain is None else one.chain.ends(question.now)
        return {"nodes": one.links.nodes, **asdict(one), "ends": ends}

    tree = {
        "choices": [told(one) for one in choices],
        "best": None if best is None else choices.index(best),
        "unit": question.unit,
        "notes": question.notes,
    }
    yield json.dumps(tree, indent=1)
