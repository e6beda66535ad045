"""Options of sbatch and of srun."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.cluster.mounts import Mount
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.setting import COMMAND_LINE, DEFAULT, Setting, merge
from verl_hpc.cluster.site import Site
from verl_hpc.cluster.time_limit import parse_time, signal_lead
from verl_hpc.errors import ConfigError
from verl_hpc.runs.contract import ATTEMPT


def sbatch_options(request: Request) -> list[Setting]:
    """Options of the script's #SBATCH lines.

    Raises:
        ConfigError: a time limit or a lead that cannot be.
    """
    profile, site = request.profile, request.profile.site
    options = [Setting("job-name", request.config.name, request.origin("name"))]
    options += [
        Setting(name, getattr(site, name), profile.origin(name))
        for name in ("account", "partition", "qos")
        if getattr(site, name) is not None
    ]
    options += [Setting("nodes", str(request.nodes), COMMAND_LINE), *_placement(request)]
    if site.requested_memory is not None:
        options.append(Setting("mem", site.requested_memory, profile.origin("memory")))
    if site.exclusive:
        options.append(Setting("exclusive", None, profile.origin("exclusive")))
    if site.cluster is not None:
        options.append(Setting("clusters", site.cluster, profile.origin("cluster")))
    if request.excluded:
        options.append(Setting("exclude", ",".join(request.excluded), request.exclude_list))
    options += [
        Setting("time", request.time, COMMAND_LINE),
        *_restarts(request),
        # Limits of the login node, such as that of address space, are not for ranks.
        Setting("propagate", "NONE", DEFAULT),
        # A job that starts again would otherwise overwrite what its earlier life said.
        Setting("open-mode", "append", DEFAULT),
        Setting("output", _output(request), request.origin("directory")),
    ]
    return _with_passed(request, merge(options, profile.options("extra_directives")))


def srun_options(request: Request, mounts: Sequence[Mount], names: Sequence[str]) -> list[Setting]:
    """Options of the one srun; `names` are the variables that ranks need."""
    profile, site = request.profile, request.profile.site
    options = _placement(request)
    if site.gpu_option is not None:
        # NCCL finds NVLink only if every rank sees every GPU of its node.
        options.append(Setting("gpu-bind", "none", DEFAULT))
    options += [
        Setting("mpi", site.mpi, profile.origin("mpi")),
        # Else steps lack the script's variables where jobs start without the submitter's.
        Setting("export", "ALL", DEFAULT),
        Setting("kill-on-bad-exit", "1", DEFAULT),
        Setting("label", None, DEFAULT),
        Setting("output", f"${ATTEMPT}/%N.log", DEFAULT),
        *site.container.srun_options(mounts, names),
    ]
    return merge(options, profile.options("srun_args"))


def drop(
    names: Sequence[str], sbatch: list[Setting], srun: list[Setting]
) -> tuple[list[Setting], list[Setting]]:
    """Both lists without the options that the site never wants.

    Raises:
        ConfigError: one of them would not be given anyway.
    """
    known = sorted({setting.name for setting in (*sbatch, *srun)})
    for name in names:
        if name not in known:
            raise ConfigError(
                f"drop_directives: {name!r} is not an option of this job; there are "
                f"{', '.join(known)}"
            )
    return [s for s in sbatch if s.name not in names], [s for s in srun if s.name not in names]


def check_gpu_request(site: Site, name: str, settings: Sequence[Setting]) -> None:
    """Look for the site's request of GPUs, and for a second one.

    Args:
        name: the list of the profile that has added options of its own.
        settings: all options of sbatch, or of srun.

    Raises:
        ConfigError: two options ask for GPUs, or one asks for fewer than ranks are started for.
    """
    asked = [setting for setting in settings if _asks_for_gpus(setting)]
    if len(asked) > 1:
        first, second = asked[:2]
        raise ConfigError(
            f"{name}: --{second.text} [{second.origin}] asks for GPUs, as --{first.text} "
            f"[{first.origin}] does; leave one out: set gpu_request, gpu_type if the site wants "
            "a type, or gpu_request: none where the option is the site's own way"
        )
    for setting in asked:
        if _gpus_of_node(setting, site.gpus_per_node) < site.gpus_per_node:
            raise ConfigError(
                f"{name}: --{setting.text} [{setting.origin}]: is less than gpus_per_node = "
                f"{site.gpus_per_node}, for which ranks are started; set that instead"
            )


def _gpus_of_node(setting: Setting, otherwise: int) -> int:
    """How many GPUs of a node an option asks for; `otherwise` if it does not say."""
    words = [setting.value or ""] if setting.name == "gpus-per-node" else _gpus_in_gres(setting)
    ends = [word.rpartition(":")[2] for word in words]
    # A kind of resource without a number is one of it.
    numbers = [int(end) if end.isdecimal() else 1 for end in ends]
    return sum(numbers) if numbers else otherwise


def _gpus_in_gres(setting: Setting) -> list[str]:
    items = (setting.value or "").split(",") if setting.name == "gres" else []
    return [item for item in items if item.partition(":")[0] == "gpu"]


def _asks_for_gpus(setting: Setting) -> bool:
    others = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")
    return setting.name in others or bool(_gpus_in_gres(setting))


def _placement(request: Request) -> list[Setting]:
    """Ranks, GPUs and cores of a node; srun does not inherit the cores from sbatch."""
    profile, site = request.profile, request.profile.site
    tasks = "tasks_per_node" if site.tasks_per_node else "gpus_per_node"
    options = [Setting("ntasks-per-node", str(site.ranks_per_node), profile.origin(tasks))]
    if site.gpu_option is not None:
        options.append(Setting(*site.gpu_option, profile.origin("gpus_per_node")))
    cores = Setting("cpus-per-task", str(site.cores_per_rank), profile.origin("cores_per_node"))
    return [*options, cores]


def _with_passed(request: Request, options: list[Setting]) -> list[Setting]:
    """Let the variables of `pass_environment` through where a job starts without the others."""
    passed = request.profile.site.pass_environment
    export = next((s.value or "" for s in options if s.name == "export"), "ALL")
    items = export.split(",")
    first = items[0].upper()  # Slurm reads its three words in any case
    if not passed or "ALL" in map(str.upper, items):
        return options
    listed = passed if first in ("NONE", "NIL") else [*items, *passed]
    names = Setting("export", ",".join(listed), request.profile.origin("pass_environment"))
    # Slurm does this by itself for NONE alone.
    user_environment = [Setting("get-user-env", None, DEFAULT)] if first == "NONE" else []
    return merge(options, [names, *user_environment])


def _restarts(request: Request) -> list[Setting]:
    if request.program == "doctor":
        return [Setting("no-requeue", None, DEFAULT)]
    requeue = "requeue" if request.profile.site.restarts.by == "requeue" else "no-requeue"
    origin = request.profile.origin("restarts.by")
    return [_signal(request), Setting(requeue, None, origin)]


def _signal(request: Request) -> Setting:
    """The warning before the time limit. Without `B:`, so that ranks get it, not this shell: a
    shell that waits for srun does not run its trap before srun ends."""
    profile = request.profile
    wanted = profile.site.signal_lead_s
    lead, reason = signal_lead(parse_time(request.time), wanted)
    origin = DEFAULT if wanted is None else profile.origin("signal_lead_s")
    return Setting("signal", f"USR2@{lead}", f"{origin}: {reason}" if reason else origin)


def _output(request: Request) -> str:
    """Where the batch script's few lines go; Slurm makes no directories."""
    if request.standalone:
        return "%x-%j.log"
    return f"{request.run_directory}/job/slurm-%j.log"
