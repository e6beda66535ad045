"""The doctor inside a job: what ranks find out about their nodes and about each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verl_hpc.cluster.site import PreflightConfig, Site
from verl_hpc.config.regular_file import replace_text
from verl_hpc.errors import ClusterError
from verl_hpc.hardware.measured import Measured
from verl_hpc.runs.verdict import Verdict, failing_nodes, fails, listed, ok, to_data
from verl_hpc.runtime import environment
from verl_hpc.runtime.binding import Binding, find_trouble, overlaps, read_binding
from verl_hpc.runtime.preflight.devices import judge_memory, judge_torch, look, measured_of
from verl_hpc.runtime.preflight.fabric import check_fabric, check_network
from verl_hpc.runtime.preflight.gpu import Gpu, judge_gpus, judge_nearness
from verl_hpc.runtime.preflight.limits import check_limits
from verl_hpc.runtime.preflight.network import check_all, judge_pairs, measure_pairs
from verl_hpc.runtime.preflight.node import check_clocks, check_writing
from verl_hpc.runtime.session import Session


class Findings(NamedTuple):
    """What ranks have found, the same on all of them."""

    verdicts: list[Verdict]
    measured: Measured | None
    """For the planner; None where nodes have different devices, or no profile names the site."""


def examine(
    here: Session,
    site: Site | None,
    directory: Path,
    scratch: Path,
    gpus: list[Gpu] | str,
    nccl_log: Path,
    num_nodes: int | None = None,
) -> Findings:
    """Every check, one after the other; all ranks call it, and all get the same findings.

    Args:
        here: the job.
        site: what is expected of nodes; None expects nothing and reports.
        directory: where runs of this site write.
        scratch: node-local directory; made if it is not there.
        gpus: of this rank's node, read before MPI was started.
        nccl_log: where NCCL writes what it uses.
        num_nodes: nodes that there should be; None takes what there is.
    """
    wanted = site.preflight if site is not None else PreflightConfig()
    wanted_gpus = None if site is None else site.gpus_per_node
    hosts = node_names(here)
    bindings = here.control.allgather(read_binding(here.world))
    ranks = here.control.allgather(look(here))
    verdicts = [
        _check_world(here, hosts, num_nodes),
        judge_binding(bindings),
        _check_gpus(here, hosts, gpus, wanted_gpus),
        judge_torch(ranks, hosts, wanted_gpus),
        *judge_nearness(bindings, here.control.allgather(_near_cores(here, gpus))),
        judge_memory(ranks),
        *check_fabric(here, hosts),
        check_limits(here, hosts, wanted_gpus),
        check_clocks(here, hosts, wanted.max_clock_skew_s),
        check_writing(here, hosts, "run directory", directory, wanted.min_write_gb_s),
        check_writing(here, hosts, "scratch", scratch, None),
    ]
    speeds = measure_pairs(here, hosts)
    if speeds:
        verdicts.append(judge_pairs(speeds, hosts, wanted.min_bandwidth_gb_s))
    verdicts += check_all(here, wanted.min_bandwidth_gb_s)
    verdicts += check_network(here, hosts, nccl_log)
    if site is None:
        return Findings(verdicts, None)
    return Findings(verdicts, measured_of(site.name, len(hosts), ranks, speeds))


def node_names(here: Session) -> list[str]:
    """Slurm's name of each node, by its index."""
    names = dict(here.control.allgather((here.world.node, environment.node_name())))
    return [names[node] for node in range(here.world.num_nodes)]


def measured_path(directory: Path, job_id: str) -> Path:
    return directory / f"measured-{job_id}.json"


def result_path(directory: Path, job_id: str) -> Path:
    return directory / f"preflight-{job_id}.json"


def write_result(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the verdicts for the submitting process.

    Raises:
        ClusterError: they cannot be written.
    """
    failing = [{"node": n, "reason": why} for n, why in failing_nodes(verdicts)]
    _write(path, {"verdicts": to_data(verdicts), "failing_nodes": failing})


def write_measured(path: Path, measured: Measured) -> None:
    """Write what was measured for the planner; raises as `write_result`."""
    _write(path, measured.model_dump(mode="json", exclude_none=True))


def _write(path: Path, tree: Mapping[str, Any]) -> None:
    try:
        replace_text(path, json.dumps(tree, indent=1) + "\n")
    except OSError as error:
        raise ClusterError(f"--out {path.parent}: {error.strerror}; name another") from None


def judge_binding(bindings: Sequence[Binding]) -> Verdict:
    """Whether ranks have the cores that were asked for, and share none."""
    troubles = find_trouble(bindings)
    if troubles:
        text = listed([f"{t.host}: {t.text}" for t in troubles], 4)
        if any(trouble.avoidable for trouble in troubles):
            return fails("cores", text, "correct --cpus-per-task or --cpu-bind of srun")
        return fails("cores", text, "correct cores_per_node in the site profile")
    fewest = min(len(b.cores) for b in bindings)
    how = "not bound: ranks share them" if overlaps(bindings) else "no two ranks on one"
    spread = max(len(b.numa) for b in bindings)
    numa = f"; a rank's are on up to {spread} memory domains" if spread > 1 else ""
    return ok("cores", f"at least {fewest} a rank, {how}{numa}")


def _check_world(here: Session, hosts: Sequence[str], num_nodes: int | None) -> Verdict:
    """The ranks of the control plane are those that torch reaches, in the same order."""
    import torch
    import torch.distributed as dist

    here.enter("torch and the control plane")
    world = here.world
    heard = torch.empty(world.size, dtype=torch.int64, device=here.device)
    mine = torch.tensor([world.rank], dtype=torch.int64, device=here.device)
    dist.all_gather_into_tensor(heard, mine)
    agreed = heard.tolist() == list(range(world.size)) == here.control.allgather(world.rank)
    text = f"{world.size} ranks on {len(hosts)} nodes: {listed(hosts)}"
    if here.control.any(not agreed):
        return fails(
            "ranks", f"{text}; torch sees others than {here.job.library}", "see docs/preflight.md"
        )
    if num_nodes is not None and len(hosts) != num_nodes:
        todo = "start one srun over all nodes of the job"
        return fails("ranks", f"{text}; {num_nodes} nodes were meant", todo)
    return ok("ranks", f"{text}; {here.job.library} and torch agree")


def _check_gpus(
    here: Session, hosts: Sequence[str], gpus: list[Gpu] | str, wanted: int | None
) -> Verdict:
    said = here.control.allgather((here.world.node, gpus if here.world.local_rank == 0 else None))
    by_node = {hosts[node]: answer for node, answer in said if answer is not None}
    return judge_gpus(by_node, wanted, on_gpus=here.world.device != "cpu")


def _near_cores(here: Session, gpus: list[Gpu] | str) -> frozenset[int] | None:
    """Cores near this rank's GPU; None without one, or where it is unknown."""
    if here.world.device == "cpu" or isinstance(gpus, str):
        return None
    import torch

    uuid = str(torch.cuda.get_device_properties(here.device).uuid)
    return next((gpu.near_cores for gpu in gpus if gpu.uuid.endswith(uuid)), None)
