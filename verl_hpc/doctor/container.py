"""What ranks enter, looked for on the login node: image, mounts and program."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from verl_hpc.cluster.checks import image_path
from verl_hpc.cluster.request import Request
from verl_hpc.runs.verdict import Verdict, fails, listed, ok, unknown

_UNSEEN = "not seen from here, and check_paths is false"


def check_container(request: Request) -> Verdict:
    """The container's image, mounts and program are here, as far as login nodes can tell."""
    container = request.profile.site.container
    if container.image is None:
        return ok("container", f"{container.kind}: ranks run in the node's own file system")
    needed = list(dict.fromkeys((request.directory, request.run_directory)))
    if (verdict := container.look(needed)) is not None:
        return verdict
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
    program = getattr(container, "program", container.kind)
    if container.option is None and shutil.which(program) is None:
        todo = "nodes may have it, or setup may load it; --nodes tries it"
        return unknown("container", f"{image}; {program} is not on PATH here", todo)
    return ok("container", f"{container.kind}: {image}")


def _missing(request: Request, what: str, why: str, todo: str) -> Verdict:
    if not request.profile.site.check_paths:
        return unknown("container", f"{what} is {_UNSEEN}")
    return fails("container", f"{what} {why}", todo)
