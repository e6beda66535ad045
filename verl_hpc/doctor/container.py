"""What ranks enter, looked for on the login node: image, mounts, program, environment file."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_hpc.cluster.checks import image_path
from verl_hpc.cluster.request import Request
from verl_hpc.runs.verdict import Verdict, fails, listed, ok, unknown

_PROGRAMS = {"bwrap": "bwrap", "docker": "docker", "shifter": "shifter"}
"""The program of each kind of container whose profiles do not name it."""
_UNSEEN = "not seen from here, and check_paths is false"


def check_container(request: Request) -> Verdict:
    """The container's image, mounts and program are here, as far as login nodes can tell."""
    container = request.profile.site.container
    if container.image is None:
        return ok("container", f"{container.kind}: ranks run in the node's own file system")
    if container.kind == "edf":
        return _check_edf(request, container.image)
    image = image_path(request)
    if image is None:
        return unknown("container", f"{container.image} is in a registry; nodes must reach it")
    if "$" in str(image):
        return unknown("container", f"{image}: not all of its variables are set here")
    if not image.exists():
        return _missing(request, str(image), "does not exist", "build it with containers/")
    if not os.access(image, os.R_OK):
        return fails("container", f"{image} cannot be read", "ask its owner for permission")
    sources = [os.path.expandvars(mount.partition(":")[0]) for mount in container.mounts]
    lost = [source for source in sources if "$" not in source and not Path(source).exists()]
    if lost:
        todo = "correct container.mounts in the site profile"
        return _missing(request, listed(lost), "cannot be mounted: not there", todo)
    program = getattr(container, "program", _PROGRAMS.get(container.kind))
    if program is not None and shutil.which(program) is None:
        todo = "nodes may have it, or setup may load it; --nodes tries it"
        return unknown("container", f"{image}; {program} is not on PATH here", todo)
    return ok("container", f"{container.kind}: {image}")


def _missing(request: Request, what: str, why: str, todo: str) -> Verdict:
    if not request.profile.site.check_paths:
        return unknown("container", f"{what} is {_UNSEEN}")
    return fails("container", f"{what} {why}", todo)


def _check_edf(request: Request, name: str) -> Verdict:
    """An environment definition file of CSCS's container engine: docs.cscs.ch, "Container Engine".

    It has an image, and its mounts show the working and the run directory.
    """
    file = next((path for path in _places(name) if path.is_file()), None)
    if file is None:
        places = listed([str(path) for path in _places(name)])
        return fails("container", f"no environment definition file {places}", "write it there")
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return fails("container", f"{file}: {error}", "correct it: srun --environment reads TOML")
    if "base_environment" in tree:
        return unknown("container", f"{file}: its base_environment is not looked into")
    image = os.path.expandvars(str(tree.get("image", "")))
    if not image:
        return fails("container", f"{file} names no image", "set image there")
    if image.startswith("/") and not Path(image).exists():
        return fails("container", f"{file}: its image {image} does not exist", "build it")
    targets = list(_targets(tree))
    needed = dict.fromkeys((request.directory, request.run_directory))
    hidden = [str(path) for path in needed if not any(map(path.is_relative_to, targets))]
    if hidden:
        todo = f"add to its mounts: {', '.join(f'{path}:{path}' for path in hidden)}"
        return fails("container", f"{file}: no mount shows {listed(hidden)}", todo)
    return ok("container", f"edf: {file} with {image}")


def _places(name: str) -> list[Path]:
    """Where srun looks for an environment: a path, or a name below EDF_PATH or ~/.edf."""
    if "/" in name:
        return [Path(os.path.expandvars(name))]
    directories = [Path(place) for place in os.environ.get("EDF_PATH", "").split(":") if place]
    return [place / f"{name}.toml" for place in (*directories, Path.home() / ".edf")]


def _targets(tree: dict[str, Any]) -> Iterator[str]:
    for mount in tree.get("mounts", ()):
        source, _, rest = os.path.expandvars(str(mount)).partition(":")
        yield rest.partition(":")[0] or source
