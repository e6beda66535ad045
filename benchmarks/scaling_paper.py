"""A run on more and more ranks by the time model and the memory ledger, and where it loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.scaling_shapes import Shape
from verl_hpc.errors import VerlHpcError
from verl_hpc.placement.layouts import RunLayouts, layouts_of, run_layouts
from verl_hpc.planner.memory.ledger import Ledger, ledger
from verl_hpc.planner.search.explain import placed_text
from verl_hpc.planner.search.search import Candidate, search
from verl_hpc.planner.search.sizes import search_sizes
from verl_hpc.planner.timing.step import predict_step, step_flops
from verl_hpc.planner.timing.workload import workload_of

RULE = 0.75
"""Least efficiency that computing centres ask for."""
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
OUTSIDE = "transfer"
"""What a refit takes beside its terms: its messages, simulated over links."""


@dataclass(frozen=True)
class Step:
    """A predicted step on so many ranks."""

    num_ranks: int
    sequences: int
    tokens: float
    seconds: float
    operators: Mapping[str, float]
    """Seconds of each."""
    terms: Mapping[str, Mapping[str, float]]
    """Seconds of what each operator consists of; empty where the search alone was asked."""
    utilisation: float
    layout: str
    spare_gib: float | None
    """Of the fullest rank in its fullest phase, by the ledger; None where no ledger was asked."""

    @property
    def each(self) -> float:
        """Tokens of a rank."""
        return self.tokens / self.num_ranks


@dataclass(frozen=True)
class Row:
    """A line of a table: a step beside that of the fewest ranks on which the run fits."""

    num_ranks: int
    sequences: int
    step: Step | None
    why_not: str
    """What keeps it from these ranks; empty where nothing does."""
    efficiency: float
    lost: Mapping[str, float]
    """Seconds of each operator beyond its share of the first step, the most first."""
    lost_terms: Mapping[str, float]
    """The same of the terms of the operator that loses most."""

    @property
    def keeps_rule(self) -> bool:
        return self.efficiency >= RULE

    @property
    def most(self) -> str:
        """The operator that loses most, with its share of all that is lost."""
        total = sum(seconds for seconds in self.lost.values() if seconds > 0)
        if self.efficiency >= 1.0 or not total:
            return ""
        name, seconds = next(iter(self.lost.items()))
        return f"{name} {seconds / total:.0%}"


Finder = Callable[[Shape, int], Step]
"""A step of a run on so many ranks; raises VerlHpcError where there is none."""


def rows_of(shape: Shape, sizes: Sequence[int], find: Finder, weak: bool) -> list[Row]:
    """A row for each number of ranks.

    Args:
        shape: the run.
        sizes: numbers of ranks, ascending.
        find: what is a step on them.
        weak: the batch grows with the ranks.
    """
    rows: list[Row] = []
    first: Step | None = None
    for num_ranks in sizes:
        mine = shape.grown(num_ranks) if weak else shape
        if mine is None:
            why = "less than one sequence an optimizer step"
            rows.append(Row(num_ranks, 0, None, why, 0.0, {}, {}))
            continue
        sequences = workload_of(mine.config).sequences
        try:
            step = find(mine, num_ranks)
        except VerlHpcError as error:
            rows.append(Row(num_ranks, sequences, None, str(error), 0.0, {}, {}))
            continue
        first = first or step
        rows.append(row_of(first, step))
    return rows


def row_of(first: Step, step: Step) -> Row:
    """A step beside the first one."""
    share = step.each / first.each
    lost = _more(first.operators, step.operators, share)
    most = next(iter(lost))
    terms = _more(first.terms.get(most, {}), step.terms.get(most, {}), share)
    efficiency = share * first.seconds / step.seconds
    return Row(step.num_ranks, step.sequences, step, "", efficiency, lost, terms)


def breaks_at(rows: Sequence[Row]) -> tuple[Row | None, Row | None]:
    """The last row that keeps the rule, and the first that does not; None where there is none."""
    kept: Row | None = None
    for row in rows:
        if row.step is None:
            continue
        if not row.keeps_rule:
            return kept, row
        kept = row
    return kept, None


def breaks_at_of_best(rows: Sequence[Row]) -> Row | None:
    """The first row below the rule if the most efficient size is what others are held against."""
    best = max((row for row in rows if row.step is not None), key=lambda row: row.efficiency)
    larger = [row for row in rows if row.step is not None and row.num_ranks > best.num_ranks]
    return next((row for row in larger if row.efficiency < RULE * best.efficiency), None)


def found(shape: Shape, num_ranks: int) -> Step:
    """With the placement and layouts that are fastest of those that fit by the ledger; of a mixture
    of experts by the search's formulas alone.

    Raises:
        ConfigError: nothing fits.
    """
    if shape.arch.num_experts:
        return _formulas(shape, num_ranks)
    best = search_sizes(shape.config, shape.archs, shape.machine, [num_ranks])
    return _step(shape, best.ledger.layouts, best.ledger, _text(best.candidate))


def own(shape: Shape, num_ranks: int) -> Step:
    """With the layouts that its configuration has.

    Raises:
        ConfigError: it cannot be laid out on these ranks, or does not fit.
    """
    layouts = run_layouts(
        shape.config, shape.arch, num_ranks, archs=shape.archs, ranks_per_node=shape.ranks_per_node
    )
    told = ledger(shape.config, shape.archs, layouts, shape.machine.hardware)
    if told.first_misfit is not None:
        raise VerlHpcError(f"does not fit: {told.first_misfit.why_not()}")
    text = ", ".join(
        " ".join(f"{key.upper()}{size}" for key, size in sizes.items())
        for sizes in layouts_of(layouts).values()
    )
    return _step(shape, layouts, told, text)


def _step(shape: Shape, layouts: RunLayouts, told: Ledger, text: str) -> Step:
    step = predict_step(told.config, shape.arch, layouts, shape.machine)
    efficiency = shape.machine.efficiency
    terms = {}
    for name, cost in step.costs.items():
        terms[name] = {
            term: amount * efficiency.of(term) for term, amount in cost.items() if amount
        }
        if (rest := step.operators[name] - sum(terms[name].values())) > 1e-9:
            terms[name][OUTSIDE] = rest
    room = told.least_room_bytes
    return Step(
        layouts.num_ranks,
        workload_of(shape.config).sequences,
        step.tokens,
        step.seconds,
        step.operators,
        terms,
        step.utilisation,
        text,
        None if room is None else room / 2**30,
    )


def _formulas(shape: Shape, num_ranks: int) -> Step:
    best = search(shape.config, shape.archs, shape.machine, num_ranks).best
    work = workload_of(shape.config)
    peak = num_ranks * shape.machine.peak(shape.config.model.dtype)
    return Step(
        num_ranks,
        work.sequences,
        work.tokens,
        best.seconds,
        best.operators,
        {},
        step_flops(shape.config, shape.archs, work) / (best.seconds * peak),
        _text(best),
        None,
    )


def _text(candidate: Candidate) -> str:
    layouts = _layouts(candidate)
    apart = f"{placed_text(candidate)}: " if len(candidate.sets) > 1 else ""
    same = {text for name, text in layouts.items() if name != "rollout"}
    if len(same) == 1:
        rollout = f"; rollout {layouts['rollout']}" if "rollout" in layouts else ""
        return f"{apart}{same.pop()}{rollout}"
    return apart + "; ".join(f"{name} {text}" for name, text in layouts.items())


def _layouts(candidate: Candidate) -> dict[str, str]:
    """Describe each role's layout, such as `TP8 PP4 DP4, recompute full`; for the rollout,
    `TP8`."""
    texts = {}
    for role, option in candidate.options.items():
        if option.cut is None:
            continue
        layout = option.cut.layout
        sizes = [f"TP{layout.tp}", f"PP{layout.pp}", f"DP{layout.num_replicas}"]
        sizes += [f"CP{layout.cp}"] * (layout.cp > 1)
        sizes += [f"VPP{layout.vpp}"] * (layout.vpp > 1) + [f"EP{layout.ep}"] * (layout.ep > 1)
        recompute = option.cut.recompute
        texts[role] = " ".join(sizes) + f", recompute {recompute}" * (recompute != "none")
    if candidate.rollout_tp is not None:
        texts["rollout"] = f"TP{candidate.rollout_tp}"
    return texts


def _more(first: Mapping[str, float], now: Mapping[str, float], share: float) -> dict[str, float]:
    """What each takes beyond its share of the first, the most first."""
    names = dict.fromkeys([*now, *first])
    lost = {name: now.get(name, 0.0) - share * first.get(name, 0.0) for name in names}
    return dict(sorted(lost.items(), key=lambda pair: -pair[1]))
