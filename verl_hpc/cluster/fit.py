"""Whether a run fits the memory of its nodes, before it waits for them; and layouts that do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from verl_hpc.cluster.checks import read_models
from verl_hpc.cluster.hardware import hardware_of
from verl_hpc.cluster.job import Job
from verl_hpc.cluster.models import model_files
from verl_hpc.cluster.request import Request
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import CPU, NAMES, Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.phase import GIB
from verl_hpc.planner.plan import Planner, cheapest_change
from verl_hpc.planner.search.searched_settings import refuse_searched
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.sources.local import SIZES

FORCE = "--force submits it all the same"
_UNCHECKED = "memory was not checked"


def memory_verdict(job: Job, force: bool = False) -> str:
    """What the memory ledger says of a run, in a line.

    Args:
        job: of the run.
        force: let pass what does not fit.

    Raises:
        ConfigError: it does not fit; with the first phase that does not, and the cheapest change.
    """
    known, request = _known(job), job.request
    if isinstance(known, str):
        return f"{_UNCHECKED}: {known}"
    hardware, archs, shipped = known
    per_node = hardware.ranks_per_node
    first = next(iter(request.config.role_settings))
    layouts = run_layouts(
        request.config, archs[first], request.num_ranks, archs=archs, ranks_per_node=per_node
    )
    told = ledger(request.config, archs, layouts, hardware, counts_peers=True)
    misfit = told.first_misfit
    by = f", by the sizes of {', '.join(map(str, shipped))}" if shipped else ""
    if misfit is None:
        room = f"{(told.least_room_bytes or 0) / GIB:.1f} GiB"
        return f"memory: {room} to spare in every phase{by}"
    if force:
        return f"memory: does NOT fit{by}, and is forced: {misfit.why_not()}"
    change = cheapest_change(told, archs)
    advice = f"cheapest change found: {change}" if change else "no change that was tried helps"
    raise ConfigError(
        f"it does not fit on {request.nodes} x {per_node} {hardware.kind.name}{by}: "
        f"{misfit.why_not()}\n{advice}\n{FORCE}; `python -m verl_hpc plan` shows all phases"
    )


def with_best_layout(job: Job, made_by: str) -> Request:
    """Give a run the placement and the layouts that a search finds.

    Args:
        job: of the run.
        made_by: the command, for the record.

    Raises:
        ConfigError: what a search needs is not known, an override is of what it chooses, or
            nothing fits.
    """
    request = job.request
    refuse_searched(request.config, request.overrides, "--auto")
    known = _known(job)
    if isinstance(known, str):
        raise ConfigError(
            f"--auto: a search cannot start: {known}; or write a layout with `plan --search "
            "--write FILE`, and submit that"
        )
    hardware, archs, _ = known
    plan = Planner(request.config, archs, Machine(hardware)).search([request.nodes])
    return replace(request, config=plan.config, record=plan.record(made_by))


def _known(job: Job) -> tuple[Hardware, dict[str, Architecture], list[Path]] | str:
    """Hardware, models of all roles, and the shipped files that some of them are from; or what is
    not known."""
    site, config = job.site, job.request.config
    if site.gpus_per_node and site.gpu is None:
        return (
            f"site {site.name} does not say which GPUs its nodes have (gpu); set it to one of "
            f"{', '.join(name for name in NAMES if name != CPU)}"
        )
    hardware = hardware_of(site)
    if hardware.device_bytes is None:
        return (
            f"site {site.name} does not say how much memory its nodes have (host_memory_gib); set "
            "it to GiB of a node"
        )
    try:
        files = model_files(job)
    except ConfigError as error:
        return str(error)
    shipped = dict.fromkeys(file for file in files.values() if file.parent == SIZES)
    return hardware, read_models(config, files), list(shipped)
