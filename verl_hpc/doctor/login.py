"""The doctor on a login node: everything that can be known before a job waits in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from verl_hpc.cluster.checks import check_request
from verl_hpc.cluster.job import Job, plan_job
from verl_hpc.cluster.profile import Profile
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.time_limit import parse_time
from verl_hpc.doctor.container import check_container
from verl_hpc.doctor.files import check_inputs, check_python, check_room
from verl_hpc.doctor.slurm import (
    check_account,
    check_mpi,
    check_partition,
    check_plugin,
    check_submission,
    check_tools,
)
from verl_hpc.errors import VerlHpcError
from verl_hpc.planner.search.sizes import node_counts
from verl_hpc.runs.verdict import Verdict, fails, ok, unknown
from verl_hpc.slurm.tools import Runner, run_tool

_MOST_TRIED = 1024
"""Nodes, where nobody has said how many."""


def check_login(
    request: Request | None, *, has_config: bool, has_nodes: bool = True, run: Runner = run_tool
) -> Iterator[Verdict]:
    """Verdicts in the order in which they are worth reading.

    Args:
        request: the job that is meant; None if no site profile was given.
        has_config: whether its run is the user's own, or a stand-in.
        has_nodes: whether somebody has said on how many nodes it is to run.

    Raises:
        ConfigError: a job that cannot be asked for.
    """
    if request is not None:
        parse_time(request.time)
        plan_job(request)
    tools = check_tools(run)
    yield tools
    if request is None:
        return
    job = plan_job(request)
    if tools.state == "ok":
        yield from _ask_slurm(job, run)
    yield check_container(request)
    yield check_python(job, has_config=has_config)
    yield check_room(job, has_config=has_config)
    yield _check_excluded(request)
    yield _expectations(request.profile)
    if has_config:
        yield from check_inputs(job)
        yield _check_layout(job, has_nodes)


def _ask_slurm(job: Job, run: Runner) -> Iterator[Verdict]:
    request = job.request
    yield check_mpi(job, run)
    yield from check_partition(request, run)
    yield from check_account(request, run)
    yield check_submission(job, run)
    if (plugin := check_plugin(request.profile, run)) is not None:
        yield plugin


def _check_excluded(request: Request) -> Verdict:
    names = ", ".join(request.excluded) or "none"
    return ok("excluded", f"{names} ({request.exclude_list})")


def _expectations(profile: Profile) -> Verdict:
    """What nodes will be held to, and where it came from."""
    wanted = profile.site.preflight
    shown = []
    for name in ("min_bandwidth_gb_s", "min_write_gb_s", "max_clock_skew_s"):
        value = getattr(wanted, name)
        text = "null" if value is None else f"{value:g}"
        shown.append(f"{name} {text} [{profile.origin(f'preflight.{name}')}]")
    return ok("expected", ", ".join(shown))


def _check_layout(job: Job, has_nodes: bool) -> Verdict:
    """On the nodes that are asked for, or else on the fewest of those that are tried."""
    request, errors = job.request, []
    for nodes in [request.nodes] if has_nodes else node_counts(_MOST_TRIED):
        try:
            check_request(replace(job, request=replace(request, nodes=nodes)))
        except VerlHpcError as error:
            errors.append(str(error))
            continue
        ranks = f"{nodes} x {job.site.ranks_per_node} ranks"
        return ok("layout", f"the run can be laid out on {ranks}")
    if has_nodes or errors[-1] == errors[-2]:  # else it is a matter of their number
        return fails("layout", errors[-1], "see --help of submit")
    return unknown("layout", errors[0], "`submit --dry-run --nodes N` looks at N nodes")
