"""What Slurm answers when it is asked whether a site profile fits the cluster."""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Iterator

from verl_hpc.cluster.inherited import job_environment
from verl_hpc.cluster.job import Job
from verl_hpc.cluster.profile import Profile
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.time_limit import parse_time
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.verdict import Verdict, fails, listed, ok, unknown
from verl_hpc.slurm.tools import (
    Runner,
    associations,
    longest_of_qos,
    mpi_plugins,
    node_kinds,
    partitions,
    run_tool,
)

_TOOLS = ("sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
_SBATCH_DECIDES = "sbatch's own answer, below, decides"


def check_tools(run: Runner = run_tool) -> Verdict:
    """Slurm's programs are here, and which version."""
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if missing:
        todo = "log in to a node of the cluster, or load Slurm's module"
        return fails("slurm", f"not on PATH: {', '.join(missing)}", todo)
    try:
        return ok("slurm", run(["sbatch", "--version"]).strip())
    except ClusterError as error:
        return fails("slurm", last_line(error), "is SLURM_CONF right?")


def check_mpi(job: Job, run: Runner = run_tool) -> Verdict:
    """srun has the plugin that it is given."""
    mpi = next((setting.value for setting in job.srun if setting.name == "mpi"), None)
    if mpi is None:
        return ok("mpi", "drop_directives takes --mpi away: srun's own default")
    wanted = f"mpi: {mpi}"
    try:
        plugins = mpi_plugins(run)
    except ClusterError as error:
        return unknown("mpi", last_line(error))
    offered = f"srun --mpi=list offers {', '.join(plugins)}"
    if mpi in plugins:
        return ok("mpi", f"{wanted}; {offered}")
    todo = "choose one that the MPI library of the ranks speaks (docs/site_profile.md), or none"
    return fails("mpi", f"{wanted}, but {offered}", todo)


def check_partition(request: Request, run: Runner = run_tool) -> Iterator[Verdict]:
    """The partition is there and up, has room for the job, and nodes like the profile's."""
    name = request.profile.site.partition
    try:
        known = partitions(run)
    except ClusterError as error:
        yield unknown("partition", last_line(error))
        return
    chosen = [p for p in known if p["PartitionName"] == name or (name is None and _default(p))]
    if not chosen:
        names = listed([p["PartitionName"] for p in known])
        wanted = "the cluster has no default partition" if name is None else f"{name}: none such"
        todo = f"set partition in the site profile: {names}"
        yield _unless_chosen(name, fails("partition", wanted, todo))
        return
    yield _unless_chosen(name, _fits(request, chosen[0]))
    yield _unless_chosen(name, _nodes_fit(request.profile, chosen[0]["PartitionName"], run))


def _unless_chosen(name: str | None, verdict: Verdict) -> Verdict:
    """What is wrong with Slurm's default partition is no failure: where nobody names one, a site's
    own plugin of sbatch may choose by QOS, constraint or kind of GPU."""
    if name is not None or verdict.state != "fails":
        return verdict
    return unknown(verdict.check, f"{verdict.found} (Slurm's default)", _SBATCH_DECIDES)


def check_account(request: Request, run: Runner = run_tool) -> Iterator[Verdict]:
    """Account and quality of service exist for this user, where accounting says so."""
    site = request.profile.site
    try:
        rows = associations(getpass.getuser(), run)
    except ClusterError as error:
        yield unknown("account", last_line(error), _SBATCH_DECIDES)
        return
    accounts = sorted({account for account, _ in rows})
    if not rows:
        yield unknown("account", "accounting knows no account of yours", _SBATCH_DECIDES)
    elif site.account is None:
        yield ok("account", f"Slurm's default; yours are {listed(accounts)}")
    elif site.account not in accounts:
        todo = f"yours are {listed(accounts)}; set account, or --account"
        yield fails("account", f"{site.account} is not among your accounts", todo)
    else:
        yield ok("account", site.account)
    if site.qos is not None:
        yield _qos(request, site.qos, rows, run)


def check_plugin(profile: Profile, run: Runner = run_tool) -> Verdict | None:
    """srun has the plugin by which it enters containers, for kinds that need one."""
    kind, option = profile.site.container.kind, profile.site.container.option
    if option is None:
        return None
    try:
        text = run(["srun", "--help"])
    except ClusterError as error:
        return unknown(kind, last_line(error))
    if option in text:
        return ok(kind, f"srun takes {option}")
    return fails(kind, f"srun has no {option}", "choose another container.kind")


def check_submission(job: Job, run: Runner = run_tool) -> Verdict:
    """sbatch would take such a job: the answer of the scheduler itself."""
    words = [f"--{s.text}" for s in job.directives if s.name not in ("output", "open-mode")]
    command = ["sbatch", "--test-only", "--output=/dev/null", *words, "--wrap=true"]
    shown = " ".join(words)
    try:
        # As the job is submitted: nothing of the job or the shell that this is typed in.
        with job_environment({setting.name for setting in job.passed}):
            run(command)
    except ClusterError as error:
        reason = last_line(error).removeprefix(f"{' '.join(command)}: ")
        return fails("sbatch", f"{reason}, with {shown}", "correct the site profile")
    return ok("sbatch", f"takes {shown}")


def last_line(error: ClusterError) -> str:
    """Programs of Slurm end with what matters, after lines of context."""
    return str(error).splitlines()[-1].strip().rstrip(".")


def _default(partition: dict[str, str]) -> bool:
    return partition.get("Default") == "YES"


def _fits(request: Request, partition: dict[str, str]) -> Verdict:
    name, state = partition["PartitionName"], partition.get("State", "?")
    time, nodes = partition.get("MaxTime", "?"), partition.get("MaxNodes", "?")
    text = f"{name}: {state}, {partition.get('TotalNodes', '?')} nodes; a job at most {nodes} "
    text += f"nodes and {time}"
    if state != "UP":
        return fails("partition", text, "wait, or choose another with --partition")
    if nodes.isdecimal() and request.nodes > int(nodes):
        return fails("partition", text, f"ask for fewer than --nodes {request.nodes}")
    if not _is_shorter(request.time, time):
        return fails("partition", text, f"ask for less than --time {request.time}")
    return ok("partition", text)


def _nodes_fit(profile: Profile, partition: str, run: Runner) -> Verdict:
    site = profile.site
    wanted = f"cores_per_node {site.cores_per_node}, gpus_per_node {site.gpus_per_node}"
    try:
        kinds = node_kinds(partition, run)
    except (ClusterError, ValueError) as error:
        return unknown("nodes", f"{wanted}; {error}")
    shown = [f"{cores} cores and {there} GPUs" for cores, there in kinds]
    text = f"{wanted}; nodes of {partition} have {' or '.join(shown) or 'nothing known'}"
    # Where nobody asks Slurm for GPUs it need not know of them.
    gpus = 0 if site.gpu_option is None else site.gpus_per_node
    if any(c >= site.cores_per_node and g >= gpus for c, g in kinds):
        return ok("nodes", text)
    return fails("nodes", text, "correct the numbers in the site profile")


def _qos(request: Request, name: str, rows: list[tuple[str, list[str]]], run: Runner) -> Verdict:
    account = request.profile.site.account
    of_account = [names for owner, names in rows if owner == account]
    yours = sorted({qos for names in of_account or [n for _, n in rows] for qos in names})
    if name not in yours:
        whose = f"account {account}" if of_account else "your accounts"
        todo = f"there are {listed(yours) or 'none'}; set qos, or --qos"
        return fails("qos", f"{name} is not among those of {whose}", todo)
    try:
        limit = longest_of_qos(name, run)
    except ClusterError as error:
        return unknown("qos", f"{name}: {last_line(error)}")
    if not _is_shorter(request.time, limit):
        return fails("qos", f"{name}: at most {limit}", f"ask for less than --time {request.time}")
    return ok("qos", f"{name}: at most {limit}" if limit else name)


def _is_shorter(time: str, limit: str) -> bool:
    """Whether a time fits into a limit; one that cannot be read, such as UNLIMITED, holds all."""
    try:
        return parse_time(time) <= parse_time(limit)
    except ConfigError:
        return True
