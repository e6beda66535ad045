"""What can be found wrong before a job waits in the queue for hours."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from verl_hpc.cluster.job import Job
from verl_hpc.cluster.own_code import check_defines
from verl_hpc.cluster.request import Request
from verl_hpc.config.data import FilesConfig, OwnSourceConfig
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.config.trackers import check_trackers
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture, read_architecture
from verl_hpc.placement.layouts import place_roles, run_layouts
from verl_hpc.placement.model_checks import check_heads_on_cpus, check_tokenizers
from verl_hpc.section import is_own
from verl_hpc.sources.cache import repository
from verl_hpc.sources.files import check_protocol, is_url, list_files
from verl_hpc.sources.local import found_models, local_directory, model_settings


def check_request(job: Job) -> None:
    """Compare the ranks with the layout; with the models, too, if they can be read here.

    Raises:
        ConfigError, ModelError: the run cannot be laid out on these ranks, or its roles read other
            token ids.
    """
    request, config, per_node = job.request, job.request.config, job.site.ranks_per_node
    try:
        place_roles(config, request.num_ranks, per_node)
    except ConfigError as error:
        raise ConfigError(
            f"--nodes {request.nodes} x {per_node} ranks = {request.num_ranks}: {error}"
        ) from None
    models = _models(job)
    archs = read_models(config, models)
    first = next(iter(config.role_settings))
    if first in archs:
        run_layouts(config, archs[first], request.num_ranks, archs=archs, ranks_per_node=per_node)
        if not job.site.gpus_per_node:
            check_heads_on_cpus(config, archs[first])
    _check_tokenizers(job, models)


def read_models(config: RunConfig, files: Mapping[str, Path]) -> dict[str, Architecture]:
    """Read the architectures of roles from their models' directories or files.

    Raises:
        ModelError: a file cannot be read, or is of a family that is not mapped.
    """
    settings, read = config.role_settings, cache(read_architecture)
    return {name: read(path, settings[name].parallel.engine) for name, path in files.items()}


def _models(job: Job) -> dict[str, Path]:
    """Directories on the host of the roles' models, of those that can be read here."""
    settings = job.request.config.role_settings
    directories = {name: model_directory(job, role) for name, role in settings.items()}
    return {name: directory for name, directory in directories.items() if directory is not None}


def model_directory(job: Job, role: RoleSettings) -> Path | None:
    """Where a role's config.json is on the host: in a model directory, or in a step of a run.

    None where it is not seen from here.
    """
    try:
        path = local_directory(role.model.path)
        model = outside(job, f"roles.{role.name}.path", path)
    except ConfigError:  # check_paths says so
        return None
    own = f"hf_{role.shares or role.name}"
    places = (model, model / own, model / "hf")
    return next((place for place in places if (place / "config.json").is_file()), None)


def _check_tokenizers(job: Job, models: Mapping[str, Path]) -> None:
    config = job.request.config
    first = models.get(next(iter(config.role_settings)))
    tokenizer, path = first, config.model.tokenizer
    if path is not None:
        try:
            tokenizer = outside(job, "model.tokenizer", local_directory(path))
        except ConfigError:  # check_paths says so
            return
    if tokenizer is not None:
        own = {name: directory for name, directory in models.items() if directory != first}
        check_tokenizers(tokenizer, own)


def check_packages(job: Job) -> str:
    """Look for the packages of the run's trackers and stores, where the ranks' Python is this one.

    Returns:
        What could not be looked into from here, for people; nothing if there is nothing to say.

    Raises:
        ConfigError, DataError: one is not installed.
    """
    metrics, urls = job.request.config.metrics, _urls(job.request.config)
    wanted = [f"metrics.{name} needs {t.package}" for name, t in metrics.trackers.items()]
    wanted += [f"{name} = {url} needs a package for its store" for url, name in urls.items()]
    if not wanted:
        return ""
    if _ranks_have_this_python(job):
        check_trackers(metrics)
        for url in urls:
            check_protocol(url)
        return ""
    return (
        f"{'; '.join(wanted)}: the ranks' Python is not this one, so that nobody has looked here; "
        "the run does when it starts"
    )


_ENTERED = frozenset({"environment", "container-image", "container-name", "uenv"})
"""Options of Slurm with which a job, or a step, sees another file system than login nodes."""


def other_python(job: Job) -> str | None:
    """Why the ranks' Python is not what its name is on this login node; None if it is."""
    site = job.site
    if site.container.image is not None:
        return "inside the container"
    entered = _ENTERED & {setting.name for setting in (*job.directives, *job.srun)}
    if entered:
        return f"in what --{min(entered)} enters"
    if is_path(site.python):
        return None
    if site.setup:
        return "the job's setup may choose another than this login node has"
    if "PATH" in site.environment:
        return "PATH of the profile's environment chooses it"
    return None


def is_path(python: str) -> bool:
    """Whether an interpreter, perhaps with arguments, is found without PATH."""
    return "/" in os.path.expandvars(python).split()[0]


def _ranks_have_this_python(job: Job) -> bool:
    """Whether ranks run in the environment of this process: no container, no lines of setup that
    could choose another, and the same interpreter."""
    site = job.site
    program = shutil.which(os.path.expandvars(site.python))
    if site.setup or "PATH" in site.environment or not program or other_python(job) is not None:
        return False
    return Path(program).absolute().parent == Path(sys.executable).absolute().parent


def check_paths(job: Job) -> None:
    """Look for the run's files here, as the ranks will look for them there.

    Raises:
        ConfigError: one does not exist, or no mount shows it to the ranks.
        ModelError: a model on a hub is not in the cache, or is there in part.
    """
    request = job.request
    if not job.site.check_paths:
        return
    if request.program == "train":
        found_models(request.config)
    for name, path in inputs(request) if request.program == "train" else ():
        file = outside(job, name, path)
        outside(job, name, str(repository(path)))
        for read in files_of(name, file):
            if not read.exists():
                raise _missing(f"{name} = {path}", read)
    check_own_code(job)
    image = image_path(request)
    if image is not None and "$" not in str(image) and not image.exists():
        raise ConfigError(f"container.image = {image}: does not exist; build it with containers/")


def check_own_code(job: Job) -> None:
    """Look into the files of the recipe and of the reward function that are the user's.

    Raises:
        ConfigError: one does not exist here, or does not define the name that is asked for.
    """
    request = job.request
    for name, reference in own_code(request.config) if request.program == "train" else ():
        path, _, function = reference.rpartition(":")
        file = outside(job, name, path)
        if file.exists():
            check_defines(f"{name} = {reference}", file, function)
        elif job.site.check_paths:
            raise _missing(f"{name} = {path}", file)


def own_code(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Settings that are path/to/file.py:name."""
    if config.has_own_recipe:
        yield "recipe", config.recipe
    for setting, call in config.reward_calls.items():
        if ":" in call.function:
            yield f"{setting}.function", call.function
    environment = config.rollout.environment
    if environment is not None and is_own(environment.name):
        yield "rollout.environment.name", environment.name
    for setting, source in config.sources.items():
        if isinstance(source, OwnSourceConfig):
            yield f"{setting}.path", source.path
    for setting, algorithm in config.algorithms.items():
        for part in ("advantage", "loss", "preference"):
            name: str = getattr(algorithm, part).name
            if is_own(name):
                yield f"{setting}.{part}.name", name


def _missing(setting: str, file: Path) -> ConfigError:
    return ConfigError(
        f"{setting}: {file} does not exist here; correct it, or set check_paths: false in the "
        "site profile if only compute nodes see it"
    )


def image_path(request: Request) -> Path | None:
    """Where a container's image is; None without one, and for a name in a registry.

    A variable that is not set here stays in the path.
    """
    container = request.profile.site.container
    image = os.path.expandvars(container.image or "")
    if not container.may_be_a_file:
        return None
    is_file = image.startswith(("/", ".", "$")) or image.endswith((".sif", ".sqsh"))
    return request.directory / image if is_file else None


def check_passed(job: Job) -> None:
    """Raises: ConfigError: a variable that is to be passed on is not set here."""
    for setting in job.passed:
        if setting.name not in os.environ:
            raise ConfigError(
                f"pass_environment: {setting.name} is not set; export it before you submit"
            )


def inputs(request: Request) -> Iterator[tuple[str, str]]:
    """The setting and the path of everything that a run reads."""
    config = request.config
    yield from ((n, local_directory(path)) for n, path in model_settings(config).items())
    for name, source in config.sources.items():
        if isinstance(source, FilesConfig):
            yield from ((f"{name}.paths", path) for path in source.paths if not is_url(path))
    for name, reference in own_code(config):
        yield name, reference.rpartition(":")[0]
    program = config.rollout.program
    if program is not None and program.directory is not None:
        yield "rollout.program.directory", program.directory


def files_of(name: str, file: Path) -> list[Path]:
    """The files that are read where a setting is this file, directory or glob.

    Raises:
        DataError: a data set's directory or glob has none.
    """
    return [Path(path) for path in list_files(str(file))] if name.endswith(".paths") else [file]


def _urls(config: RunConfig) -> dict[str, str]:
    """The URLs that data sets are read from, with their setting."""
    files = {n: s.paths for n, s in config.sources.items() if isinstance(s, FilesConfig)}
    return {
        path: f"{name}.paths" for name, paths in files.items() for path in filter(is_url, paths)
    }


def outside(job: Job, name: str, path: str) -> Path:
    """Where a path of the ranks is on the host.

    Raises:
        ConfigError: no mount shows it to the ranks.
    """
    request = job.request
    inside = Path(os.path.normpath(request.directory / path))
    for mount in reversed(job.mounts):  # a later one lies on top
        if mount.covers(str(inside)):
            return Path(mount.source) / inside.relative_to(mount.target)
    always = (request.directory, request.run_directory)
    if any(map(inside.is_relative_to, always)) or job.site.container.shows(inside):
        return inside
    shown = ", ".join(mount.target for mount in job.mounts)
    raise ConfigError(
        f"{name} = {path}: no mount shows it to the ranks (mounted are {shown}); add its "
        "directory to container.mounts in the site profile"
    )
