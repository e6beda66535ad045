"""Schema of a site profile: what a job must know about a cluster, and no run decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from verl_hpc.cluster.containers import BareConfig, ContainerConfig
from verl_hpc.cluster.gpu import GpuFigures, kind_of
from verl_hpc.cluster.shell import control_characters
from verl_hpc.config.secret import assigns_secret, holds_secret, looks_secret
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import LinkFigures
from verl_hpc.section import (
    NonNegative,
    NonNegativeFinite,
    PathText,
    Positive,
    PositiveFinite,
    Section,
)

LONGEST_LEAD_S = 65535
"""Slurm keeps the lead in 16 bits."""


def _option(text: str) -> str:
    if not re.match(r"--[a-zA-Z0-9-]+(=|$)", text):
        raise ValueError(f"{text!r} is not an option; write --name or --name=value")
    return text


_DECIDED = {
    "nodes": "--nodes",
    "time": "--time",
    "array": "--sweep",
    "output": "directory",
    "ntasks": "tasks_per_node",
    "ntasks-per-node": "tasks_per_node",
    "cpus-per-task": "cores_per_node",
    "clusters": "cluster",
    "requeue": "restarts.by",
    "no-requeue": "restarts.by",
}
"""Options of sbatch that others here follow from, and what to set instead."""
_NOT_FOR_BATCH = ("help", "parsable", "quiet", "test-only", "usage", "version", "wait", "wrap")
"""Options that change what sbatch says, or what it submits."""


def _directive(text: str) -> str:
    name = _option(text).removeprefix("--").partition("=")[0]
    if name in _DECIDED:
        raise ValueError(f"{text!r}: ranks and files follow from it; set {_DECIDED[name]} instead")
    if name == "chdir":
        raise ValueError(
            f"{text!r}: paths of the run are relative to it; cd to it before you submit"
        )
    if name in _NOT_FOR_BATCH:
        raise ValueError(f"{text!r}: a submission reads what sbatch says of its job; leave it out")
    return text


Directive = Annotated[str, AfterValidator(_directive)]


def _step_option(text: str) -> str:
    name, _, value = _option(text).removeprefix("--").partition("=")
    if name == "export" and "ALL" not in value.upper().split(","):
        raise ValueError(
            f"{text!r}: ranks need what the batch script exports; write --export=ALL,NAME=value, "
            "or set environment"
        )
    return text


StepOption = Annotated[str, AfterValidator(_step_option)]


def _word(text: str) -> str:
    if not re.fullmatch(r"\S+", text):
        raise ValueError("must be one word; leave it out, or give null, for none")
    return text


Word = Annotated[str, AfterValidator(_word)]


def _shared_directory(text: str) -> str:
    """Check what a list of mounts can have, and what is one directory wherever a job starts."""
    if not re.fullmatch("[/$][^,:]+", text):
        raise ValueError(
            "expected a directory of shared storage, such as /shared/me/caches or $PROJECT/caches, "
            "with neither comma nor colon in it"
        )
    return text


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _texts(tree: object, name: str) -> Iterator[tuple[str, str]]:
    """All texts of a tree of plain values, keys among them, with their dotted names."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            inner = f"{name}.{key}".removeprefix(".")
            yield repr(inner), str(key)
            yield from _texts(value, inner)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value, name)
    elif isinstance(tree, str):
        yield name, tree


class RestartConfig(Section):
    """How a run that stopped early, with its state saved, resumes."""

    by: Literal["requeue", "chain"] = "requeue"
    """The job puts itself back into the queue, or jobs that wait for each other are submitted."""
    most: NonNegative = 8
    """Maximum number of automatic restarts."""


class PreflightConfig(Section):
    """What `doctor --nodes N` expects of nodes, and what becomes of those that fall short."""

    min_bandwidth_gb_s: PositiveFinite | None = None
    """Least bus bandwidth of an all-reduce between two nodes, and over all of them, in GB/s; null
    only reports what was measured."""
    min_write_gb_s: PositiveFinite | None = None
    """Least speed at which a node writes to the run directory, with all nodes writing, in GB/s;
    null only reports."""
    max_clock_skew_s: PositiveFinite = 1.0
    """How far apart the clocks of two nodes may be, in seconds."""
    exclude_days: PositiveFinite = 7.0
    """Days for which a node that failed is kept out of submissions."""
    exclude_list: str | None = None
    """File of the nodes that are kept out; null is ~/.config/verl_hpc/excluded_nodes.json. A group
    that shares nodes may share a file."""


class BudgetConfig(Section):
    """Where `budget` finds what Slurm does not know."""

    command: list[str] = []
    """A program of the site, and its arguments, that prints what the account has as one JSON
    object: granted_hours, used_hours, unit, and start and end (dates, YYYY-MM-DD), any of which it
    may leave out. It comes before Slurm's figures."""
    co2_g_per_kwh: NonNegativeFinite | None = None
    """Grams of CO2 for a kWh that the nodes consume, with the site's cooling; null reports none."""


class Site(Section):
    """A cluster, or one partition of it."""

    name: str
    """What the site is called in messages."""
    account: Word | None = None
    """Account to charge; --account on the command line wins. Where nobody gives one it is
    SBATCH_ACCOUNT, as partition and qos are SBATCH_PARTITION and SBATCH_QOS."""
    account_required: bool = False
    """Refuse to submit without an account."""
    partition: Word | None = None
    """The cluster's default if not given; --partition wins."""
    qos: Word | None = None
    """Quality of service; --qos wins."""
    cluster: Word | None = None
    """Cluster to submit to (--clusters), where login nodes serve several."""

    gpus_per_node: NonNegative
    """GPUs that a job takes of each node; 0 on nodes that compute on their cores."""
    gpu_request: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """How Slurm is asked for them: --gpus-per-node=N, --gres=gpu:N for sbatch and srun, or not at
    all, where a node comes with its GPUs."""
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """Slurm's name of them, where the site wants it in the request: gh200 asks for gpu:gh200:N."""
    gpu: str | None = None
    """Kind of the GPUs: H100-80, A100-80, H200, ... (`verl_hpc/hardware/node.py` has all, with
    their figures), in any case; the planner needs it. Of another GPU, words of the name that its
    driver gives it, such as RTX 6000 Ada, with gpu_figures."""
    gpu_figures: GpuFigures | None = None
    """Figures by the data sheet of a GPU that is none of the known kinds."""
    tasks_per_node: Positive | None = None
    """Ranks on a node: one per GPU if not given."""
    cores_per_node: Positive
    """Cores that ranks share evenly."""
    memory: Word | None = "0"
    """Memory of a node, such as 900G; null is the partition's default, and "0" all that an
    exclusive node has, or the default where nodes are shared."""
    host_memory_gib: PositiveFinite | None = None
    """Memory that a job has on a node, in GiB, for the planner; null takes `memory` where that says
    how much, and plans without a limit where it does not."""
    exclusive: bool = True
    """No other job on the nodes."""

    mpi: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")] = "pmi2"
    """A plugin that `srun --mpi=list` offers and the MPI library speaks: pmi2 for MPICH and its
    relatives, pmix for Open MPI, cray_shasta for Cray MPICH. none does without MPI: ranks find each
    other by Slurm's variables, for sites whose MPI and container disagree."""
    node_address: Annotated[str, Field(pattern=r"^[\w.-]*\{node\}[\w.-]*$")] = "{node}"
    """Name at which ranks of other nodes reach a node, {node} being its own: "{node}i" where a
    node's own name is that of a slow network."""
    python: str = "python"
    """Interpreter of the ranks; in a container, the one inside."""
    container: ContainerConfig = BareConfig()
    """How ranks get into a container: its kind (`verl_hpc/cluster/containers.py` has all), and the
    settings of that kind."""
    code: Literal["snapshot", "installed"] = "snapshot"
    """Run a copy of this package made at submission, or what the environment has installed."""
    node_scratch: str = "/tmp"  # noqa: S108
    """Node-local directory for compile caches, which break on network file systems; $NAME is
    expanded on the first node of the job."""
    caches: Annotated[str, AfterValidator(_shared_directory)] | None = None
    """Directory of shared storage in which each user's compile caches are kept from one start to
    the next; $NAME is expanded on the first node of the job. null keeps none."""
    offline: bool = True
    """Compute nodes reach no network: keep libraries from trying."""
    environment: dict[VariableName, str] = {}
    """Variables of the ranks, such as the fabric's; $NAME is expanded in the batch script."""
    pass_environment: list[VariableName] = []
    """Variables whose value is taken from the environment of the submitting user, and
    never written to a file: the way for tokens and keys."""
    login_shell: bool = False
    """Run the batch script by a login shell (bash -l), where `module` exists only there."""
    setup: list[str] = []
    """Lines of the batch script before anything else: modules, ulimit. A line that fails ends the
    job. No secrets: they go through pass_environment."""
    umask: Annotated[str, Field(pattern=r"^0?0[0-7]{2}$")] = "077"
    """Who may read a run's files: "077" the user alone, "027" the group of the directory, too."""

    signal_lead_s: Annotated[Positive, Field(le=LONGEST_LEAD_S)] | None = None
    """Seconds before the time limit at which ranks are told to save and stop; if not given, 900,
    or a third of a short limit. Slurm may send the signal up to a minute early."""
    restarts: RestartConfig = RestartConfig()
    """What happens to a run that is not done when its time is up."""
    preflight: PreflightConfig = PreflightConfig()
    """What the doctor expects of nodes."""
    budget: BudgetConfig = BudgetConfig()
    """Where `budget` finds what Slurm's accounts do not know."""
    links: LinkFigures = LinkFigures()
    """What the nodes' links carry, for `plan` and `reshard --site`."""
    measured: PathText | None = None
    """File that `doctor --nodes` wrote, whose figures the planner takes before all others; a
    relative path is from the profile's directory."""
    check_paths: bool = True
    """Refuse to submit if a path of the run does not exist here; false where login nodes do not
    see the file systems of the compute nodes."""

    srun_args: list[StepOption] = []
    """More options of srun, such as --cpu-bind=mask_cpu:..."""
    extra_directives: list[Directive] = []
    """More options of sbatch, such as --constraint=h100 or --mail-type=END; --directive on the
    command line adds to them."""
    drop_directives: list[str] = []
    """Options never to give to sbatch or srun, by name without dashes: mem, gpus-per-node, ..."""

    @property
    def requested_memory(self) -> str | None:
        """What sbatch is asked for; None leaves it to the partition."""
        return None if self.memory == "0" and not self.exclusive else self.memory

    @property
    def gpu_option(self) -> tuple[str, str] | None:
        """Name and value of the option that asks for GPUs; None if nothing does."""
        if not self.gpus_per_node or self.gpu_request == "none":
            return None
        parts = ["gpu"] if self.gpu_request == "gres" else []
        parts += [self.gpu_type] if self.gpu_type else []
        return self.gpu_request, ":".join([*parts, str(self.gpus_per_node)])

    @property
    def ranks_per_node(self) -> int:
        return self.tasks_per_node or self.gpus_per_node

    @property
    def cores_per_rank(self) -> int:
        return self.cores_per_node // self.ranks_per_node

    @model_validator(mode="before")
    @classmethod
    def _has_no_control_characters(cls, tree: object) -> object:
        """Every text of a profile may become a line of the batch script."""
        for name, text in _texts(tree, ""):
            if found := control_characters(text):
                raise ValueError(
                    f"{name} = {text!r}: has {' '.join(map(repr, found))}; texts of a profile "
                    "must be single lines"
                )
        return tree

    @model_validator(mode="after")
    def _consistent(self) -> Site:
        if self.ranks_per_node == 0:
            raise ValueError("gpus_per_node = 0 needs tasks_per_node: the ranks on a node")
        if self.gpus_per_node and self.ranks_per_node > self.gpus_per_node:
            raise ValueError(
                f"tasks_per_node = {self.tasks_per_node} is more than the {self.gpus_per_node} "
                "GPUs; a GPU serves one rank"
            )
        self._check_gpu()
        shares_gpus = self.gpus_per_node > 0 and not self.exclusive
        if problem := self.container.problem(self.mpi, shares_gpus):
            raise ValueError(problem)
        if self.cores_per_rank == 0:
            raise ValueError(
                f"cores_per_node = {self.cores_per_node} is less than the {self.ranks_per_node} "
                "ranks on a node"
            )
        for name, value in self.environment.items():
            if looks_secret(name) or holds_secret(value):
                raise ValueError(
                    f"environment.{name} looks like a secret, and profiles are files; put the "
                    "name into pass_environment and export the value before you submit"
                )
        for number, line in enumerate(self.setup, 1):
            if assigns_secret(line) or holds_secret(line):
                # Without the line: what is refused is printed.
                raise ValueError(
                    f"setup, line {number}: looks like a secret, and profiles "
                    "are files; export the value before you submit and put its name into "
                    "pass_environment, or read it from a file of yours: export NAME=$(cat FILE)"
                )
        return self

    def _check_gpu(self) -> None:
        if self.gpu is None:
            if self.gpu_figures is not None:
                raise ValueError("gpu_figures without gpu: name the GPU, as its driver does")
            return
        try:
            kind = kind_of(self.gpu, self.gpu_figures)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if not kind.is_gpu:
            raise ValueError(f"gpu = {self.gpu} is no GPU; leave it out, and set gpus_per_node: 0")
        if not self.gpus_per_node:
            raise ValueError(f"gpu = {self.gpu} with gpus_per_node = 0; leave one of them out")
