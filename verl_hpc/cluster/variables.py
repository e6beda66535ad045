"""Environment variables of the ranks."""

from __future__ import annotations

from verl_hpc.cluster.request import Request
from verl_hpc.cluster.setting import DEFAULT, Setting, merge
from verl_hpc.runs.contract import CACHE_DIRECTORY, GPUS_PER_NODE, KEPT_CACHES, NODE_ADDRESS

CACHE = "$CACHE"
"""The script's variable that holds the job's directory on each node."""
ARCHIVES = "$CACHES"
"""The script's variable that holds the directory in which compile caches are kept."""

_ALWAYS = {
    "PYTHONUNBUFFERED": "1",
    # Texts are read alike whatever locale the submitter had, or the node lacks.
    "PYTHONUTF8": "1",
    # `python -m` would look into the working directory first, and find a checkout in the place of
    # the copy, or of the installation, that the job is to run.
    "PYTHONSAFEPATH": "1",
    # The program starts itself again without it: sets of strings must iterate alike on all ranks.
    "PYTHONHASHSEED": "0",
    # HDF5 locks fail on Lustre and NFS; one rank writes a file, and renames it when it is whole.
    "HDF5_USE_FILE_LOCKING": "FALSE",
}
# In an image, the submitter's user-site packages must not shadow the image's.
_IN_IMAGE = {"PYTHONNOUSERSITE": "1"}
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}


def rank_environment(request: Request) -> list[Setting]:
    """Everything that the script exports, in order; the site's own values win."""
    profile, site = request.profile, request.profile.site
    in_image = site.container.image is not None
    settings = _defaults(_ALWAYS | (_IN_IMAGE if in_image else {}))
    if site.code == "snapshot":
        code = "$PWD" if request.standalone else "$RUN/job/code"
        path = code if in_image else f"{code}${{PYTHONPATH:+:$PYTHONPATH}}"
        settings.append(Setting("PYTHONPATH", path, profile.origin("code")))
    # srun reads this one, where a site's wrapper drops its --cpus-per-task.
    cores = profile.origin("cores_per_node")
    settings.append(Setting("SRUN_CPUS_PER_TASK", str(site.cores_per_rank), cores))
    gpus = profile.origin("gpus_per_node")
    settings.append(Setting(GPUS_PER_NODE, str(site.gpus_per_node), gpus))
    if site.node_address != "{node}":
        address = profile.origin("node_address")
        settings.append(Setting(NODE_ADDRESS, site.node_address, address))
    settings.append(Setting(CACHE_DIRECTORY, CACHE, profile.origin("node_scratch")))
    if site.caches is not None:
        settings.append(Setting(KEPT_CACHES, ARCHIVES, profile.origin("caches")))
    if site.offline:
        origin = profile.origin("offline")
        settings += [Setting(name, value, origin) for name, value in _OFFLINE.items()]
    own = [
        Setting(name, value, profile.origin(f"environment.{name}"))
        for name, value in site.environment.items()
    ]
    return merge(settings, own)


def passed_names(request: Request) -> list[Setting]:
    """Variables from the submitting environment; only their names are known here."""
    origin = request.profile.origin("pass_environment")
    return [Setting(name, None, origin) for name in request.profile.site.pass_environment]


def _defaults(values: dict[str, str]) -> list[Setting]:
    return [Setting(name, value, DEFAULT) for name, value in values.items()]
