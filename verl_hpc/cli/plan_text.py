"""Format a plan for people: the ledger's table, seconds by operator, costs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from verl_hpc.hardware.measured import MEASURED
from verl_hpc.placement.bases import shared_bases_text
from verl_hpc.placement.layouts import layouts_of, placement_of
from verl_hpc.planner.memory.phase import GIB, Phase
from verl_hpc.planner.memory.terms import term
from verl_hpc.planner.plan import Plan
from verl_hpc.planner.search.explain import explain
from verl_hpc.planner.timing.launches import MOST_SHARE
from verl_hpc.planner.timing.step import band_text

KINDS = ("weights", "gradients", "optimizer", "passes", "rollout", "other")
"""Kinds of memory: training weights, float32 gradients, master weights and moments, memory of a
pass, all of a rollout engine, and CUDA, NCCL, buffers and holes."""
_OF_TERMS: Mapping[str, str] = {
    "weights": "weights",
    "fp8": "weights",
    "apart": "weights",
    "gradients": "gradients",
    "masters": "optimizer",
    "moments": "optimizer",
    **dict.fromkeys(
        (
            "activations",
            "recomputed",
            "tower",
            "scores",
            "logits",
            "logits_gradient",
            "work",
            "placeholders",
            "gathered",
            "sent",
        ),
        "passes",
    ),
}
_WIDTH = 100
_LEAST_SHARE = 0.001
"""Share of a step below which operators are summed in one line."""


def as_text(plan: Plan, everything: bool = False) -> str:
    """Return a plan as text.

    Args:
        plan: the plan.
        everything: all terms with their formulas, all assumptions, and why others lost.
    """
    parts = [_head, _layouts, _verdict, _memory, _time, _cost, _found]
    parts += [_terms, _assumptions] if everything else [_said]
    blocks = ["\n".join(part(plan)) for part in parts]
    return "\n\n".join(block for block in blocks if block)


def by_kind(phase: Phase) -> dict[str, int]:
    """Return the bytes of the device by kind, in the order of KINDS."""
    sizes = dict.fromkeys(KINDS, 0)
    for name, size in phase.device.items():
        role, _, term = name.rpartition(".")
        sizes["rollout" if role == "rollout" else _OF_TERMS.get(term, "other")] += size
    return sizes


def _head(plan: Plan) -> Iterator[str]:
    hardware = plan.ledger.hardware
    nodes = f"{plan.num_nodes} node{'s' * (plan.num_nodes > 1)}"
    yield (
        f"{plan.config.name}: {plan.config.method} on {nodes} x {hardware.ranks_per_node} "
        f"{hardware.kind.name}: {plan.num_ranks} ranks; planned in {plan.planning_seconds:.2f} s"
    )


def _layouts(plan: Plan) -> Iterator[str]:
    placed = placement_of(plan.layouts)
    for name, sizes in layouts_of(plan.layouts).items():
        words = " ".join(f"{axis}={size}" for axis, size in sizes.items())
        yield f"  {name:<14} ranks {placed[name]:<10} {words}"
    yield from (f"  {line}" for line in shared_bases_text(plan.layouts.bases))


def _verdict(plan: Plan) -> Iterator[str]:
    told = plan.ledger
    if (why := plan.why_not()) is not None:
        if plan.most_tried is not None:
            yield f"it fits on no number of nodes that was tried, up to {plan.most_tried}"
        yield f"it does NOT fit: {why}"
        change = plan.remedy
        yield f"cheapest change found: {change}" if change else "no change that was tried helps"
        return
    room = told.least_room_bytes
    if room is None:
        yield "it fits as far as is known: nothing says how much memory the nodes have"
        return
    tight = min(told.all_phases, key=lambda phase: phase.room_bytes or 0)
    yield f"it fits, with {room / GIB:.1f} GiB to spare: least in {tight.title}, rank {tight.rank}"


def _memory(plan: Plan) -> Iterator[str]:
    phases = plan.ledger.all_phases
    width = max(len(phase.title) for phase in phases)
    yield "memory in GiB, of the fullest rank in each phase"
    columns = ("rank", *KINDS, "device", "room", "host")
    widths = [max(len(name), 6) for name in columns]
    yield f"  {'phase':<{width}} {_row(columns, widths)}"
    for phase in phases:
        sizes = [f"{size / GIB:.1f}" if size else "-" for size in by_kind(phase).values()]
        room = "-" if phase.room_bytes is None else f"{phase.room_bytes / GIB:.1f}"
        cells = [
            str(phase.rank),
            *sizes,
            f"{phase.device_bytes / GIB:.1f}",
            room,
            f"{phase.host_bytes / GIB:.1f}",
        ]
        mark = "" if phase.fits else "  does not fit"
        yield f"  {phase.title:<{width}} {_row(cells, widths)}{mark}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _time(plan: Plan) -> Iterator[str]:
    if not plan.fits:
        return
    step = plan.step
    told = {n: s for n, s in step.operators.items() if s >= _LEAST_SHARE * step.seconds}
    rest = {n: s for n, s in step.operators.items() if n not in told}
    if rest:
        told[f"{len(rest)} others"] = sum(rest.values())
    width = max(len(name) for name in told)
    yield "seconds of a step, by operator"
    for name, seconds in sorted(told.items(), key=lambda item: -item[1]):
        share = seconds / step.seconds
        digits = 2 if seconds >= 1 else 4
        line = f"  {name:<{width}} {seconds:>9.{digits}f} {share:>7.1%}"
        line += f"  {'#' * round(40 * min(share, 1))}"
        yield line.rstrip()
    apart = sum(step.operators.values()) - step.seconds
    note = f", {apart:.1f} s less than their sum: some overlap" if apart > 0.05 else ""
    yield f"  {'a step':<{width}} {step.seconds:>9.2f}{band_text(step.band)}{note}"
    yield from _launches(step.launch_shares)


def _launches(shares: Mapping[str, float]) -> Iterator[str]:
    name = max(shares, key=lambda name: shares[name], default=None)
    if name is not None and shares[name] >= MOST_SHARE:
        yield (
            f"bound by launches: in {name} the host dispatches for {shares[name]:.0%} of the time "
            "that a GPU computes; raise batch.max_tokens_per_micro_batch"
        )


def _cost(plan: Plan) -> Iterator[str]:
    if not plan.fits:
        return
    step = plan.step
    unit = "GPU" if plan.ledger.hardware.kind.is_gpu else "rank"
    speeds = step.band and (step.tokens / step.band[1], step.tokens / step.band[0])
    yield (
        f"{step.tokens_per_second:,.0f} tokens/s{band_text(speeds)}, "
        f"{step.tokens_per_second / plan.num_ranks:,.0f} a {unit}; {step.utilisation:.1%} of the "
        f"{unit}s' peak in matrix products"
    )
    if plan.gpu_hours is None:
        yield (
            f"{step.gpu_hours:.2f} {unit}-hours a step; their number follows from the data: give "
            "steps=N epochs=null for the whole run"
        )
        return
    hours = plan.gpu_hours / plan.num_ranks
    each = plan.gpu_hours / step.seconds
    yield (
        f"the whole run: {plan.config.steps} steps, {hours:.1f} hours"
        f"{band_text(step.band, each / plan.num_ranks)}, {plan.gpu_hours:,.0f} {unit}-hours"
        f"{band_text(step.band, each)}, without evaluations and saves"
    )


def _found(plan: Plan) -> Iterator[str]:
    result = plan.found
    if result is None:
        return
    searched = result.found
    yield (
        f"searched {searched.placements} placements, {searched.allotments:,} allotments and "
        f"{searched.layouts:,} layouts; settings that change:"
    )
    yield from (f"  {name}: {_short(value)}" for name, value in result.overrides.items())


def _short(value: object) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _said(plan: Plan) -> Iterator[str]:
    for line in plan.assumed:
        told = line if line.startswith(MEASURED) else f"assumed: {line}"
        yield from textwrap.wrap(told, _WIDTH, subsequent_indent="  ")
    yield "--explain lists every term with its formula, and every assumption"


def _terms(plan: Plan) -> Iterator[str]:
    yield "terms of the fullest rank, GiB"
    for phase in plan.ledger.phases:
        yield f"  {phase.title}, rank {phase.rank}"
        for where, terms in (("", phase.device), ("host ", phase.host)):
            for name, size in sorted(terms.items(), key=lambda item: -item[1]):
                yield f"    {size / GIB:>8.2f}  {where}{name}: {term(name).formula}"


def _assumptions(plan: Plan) -> Iterator[str]:
    yield "assumptions"
    for line in plan.assumptions:
        yield from textwrap.wrap(line, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    if plan.found is not None:
        yield ""
        yield "why the others lost"
        for line in explain(plan.found.found, plan.step.band):
            yield from textwrap.wrap(line, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
