"""A job in full, before it is text: what the script and the dry run are rendered from."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.cluster.mounts import Mount, parse_mount
from verl_hpc.cluster.options import check_gpu_request, drop, sbatch_options, srun_options
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.setting import DEFAULT, Setting
from verl_hpc.cluster.shell import check_path, expandable, literal, required
from verl_hpc.cluster.site import RestartConfig, Site
from verl_hpc.cluster.variables import ARCHIVES, CACHE, passed_names, rank_environment
from verl_hpc.errors import ConfigError
from verl_hpc.runs.contract import ATTEMPT
from verl_hpc.runs.verdict import counted

MOST_NODES = 65_533
"""Most nodes that a cluster of Slurm can have (the limit of MaxNodeCount)."""


@dataclass(frozen=True)
class Job:
    """What Slurm is asked for, and what the batch script does on its first node."""

    request: Request
    directives: tuple[Setting, ...]
    variables: tuple[Setting, ...]
    """Variables of the script itself: RUN, CONFIG, IMAGE, CACHES and CACHE."""
    environment: tuple[Setting, ...]
    passed: tuple[Setting, ...]
    """Variables whose values are the submitter's."""
    mounts: tuple[Mount, ...]
    srun: tuple[Setting, ...]
    prefix: tuple[str, ...]
    """Words, quoted for the shell, that enter the container."""
    command: tuple[str, ...]
    """Words, quoted for the shell, that every rank runs."""

    @property
    def site(self) -> Site:
        return self.request.profile.site

    @property
    def title(self) -> str:
        config, nodes = self.request.config, counted(self.request.nodes, "node")
        what = config.method if self.request.program == "train" else "checks"
        ranks = f"{self.site.ranks_per_node} ranks"
        return f"{config.name}: {what} on {nodes} x {ranks}, {self.site.name}"

    @property
    def restarts(self) -> RestartConfig | None:
        """None for a job that is not started again."""
        return self.site.restarts if self.request.program == "train" else None


def plan_job(request: Request) -> Job:
    """Decide everything; reads no file, no clock and no environment.

    Raises:
        ConfigError: sizes, times or paths that cannot be.
    """
    if not 1 <= request.nodes <= MOST_NODES:
        raise ConfigError(f"--nodes {request.nodes}: from 1 to {MOST_NODES}")
    if request.standalone and request.profile.site.restarts.by == "chain":
        raise ConfigError("--resume-by chain submits several jobs; there is no single script")
    site = request.profile.site
    if site.account_required and site.account is None and not request.standalone:
        raise ConfigError(
            f"account: {site.name} charges every job to one, and none is given; set account in the "
            "site profile, or give --account"
        )
    variables = _script_variables(request)
    environment = rank_environment(request)
    passed = passed_names(request)
    mounts = _mounts(request)
    names = [ATTEMPT, *(s.name for s in environment), *(s.name for s in passed)]
    sbatch, srun = sbatch_options(request), srun_options(request, mounts, names)
    dropped = site.drop_directives
    if request.program == "doctor":
        # A training job has options that this one has not.
        dropped = [name for name in dropped if name in {s.name for s in (*sbatch, *srun)}]
    directives, srun = drop(dropped, sbatch, srun)
    check_gpu_request(site, "extra_directives", directives)
    check_gpu_request(site, "srun_args", srun)
    return Job(
        request=request,
        directives=tuple(directives),
        variables=tuple(variables),
        environment=tuple(environment),
        passed=tuple(passed),
        mounts=tuple(mounts),
        srun=tuple(srun),
        prefix=tuple(site.container.prefix(mounts, names)),
        command=_command(request),
    )


def _script_variables(request: Request) -> list[Setting]:
    site, profile = request.profile.site, request.profile
    config = request.config_path if request.standalone else "$RUN/job/config.yaml"
    variables = [Setting("RUN", str(request.run_directory), request.origin("directory"))]
    if request.program == "train":
        variables.append(Setting("CONFIG", config, DEFAULT))
    if request.standalone:
        check_path("--config", config)
    if site.container.image is not None:
        image = _required("container.image", site.container.image)
        variables.append(Setting("IMAGE", image, profile.origin("container.image")))
    if site.caches is not None:
        archives = _required("caches", site.caches)
        variables.append(Setting(ARCHIVES.removeprefix("$"), archives, profile.origin("caches")))
    cache = f"{_required('node_scratch', site.node_scratch)}/verl_hpc-$SLURM_JOB_ID"
    return [*variables, Setting(CACHE.removeprefix("$"), cache, profile.origin("node_scratch"))]


def _required(field: str, value: str) -> str:
    return required(value, f"{field} of the site profile needs it, and it is not set on this node")


def _mounts(request: Request) -> list[Mount]:
    site, profile = request.profile.site, request.profile
    if not site.container.takes_mounts:
        return []
    scratch = site.node_scratch
    mounts = [Mount(scratch, scratch, False, profile.origin("node_scratch"))]
    origin = profile.origin("container.mounts")
    mounts += [parse_mount(text, origin) for text in site.container.mounts]
    # Mounted last, so that they win over a site's mount of a parent directory.
    if site.caches is not None:
        mounts.append(Mount(ARCHIVES, ARCHIVES, False, profile.origin("caches")))
    mounts.append(Mount("$PWD", "$PWD", False, DEFAULT))
    if request.runs_elsewhere:
        mounts.append(Mount("$RUN", "$RUN", False, request.origin("directory")))
    return mounts


def _command(request: Request) -> tuple[str, ...]:
    python = expandable(request.profile.site.python)
    words = [python, "-m", "verl_hpc", request.program]
    if request.program == "doctor":
        words += ["--inside", "--cluster", expandable("$RUN/job/site.yaml")]
        return (*words, "--out", expandable("$RUN/job"), "--scratch", expandable(CACHE))
    if request.profile.site.mpi == "none":
        words += ["--bootstrap", "slurm"]
    words += ["--config", expandable("$CONFIG")]
    if request.standalone:
        words += map(literal, request.overrides)
    return tuple(words)
