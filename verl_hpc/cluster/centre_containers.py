"""Containers that a computing centre has made its own: NERSC's Shifter, CSCS's container engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from verl_hpc.cluster.container_base import Container, Unmounted
from verl_hpc.cluster.mounts import IMAGE, Mount, MountText
from verl_hpc.cluster.setting import SITE, Setting
from verl_hpc.cluster.shell import expandable


class ShifterConfig(Container):
    """Shifter, started by every rank (docs.nersc.gov, "Using Shifter")."""

    kind: Literal["shifter"]
    image: str
    """Name of an image that `shifterimg pull` has fetched, such as docker:me/verl_hpc:1."""
    mounts: list[MountText] = []
    """More mounts than the working, run and scratch directories: SOURCE[:TARGET[:ro]]."""
    modules: list[str] = ["gpu"]
    """What the site adds to the image: gpu is the driver, nccl-plugin the network's libraries.
    Without any, the site's default modules are left out, too."""

    def shows(self, path: Path) -> bool:
        return path.is_relative_to(Path.home())

    def prefix(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        del names
        words = ["shifter", f"--image={IMAGE}", f"--module={','.join(self.modules) or 'none'}"]
        words += [f"--volume={mount.text}" for mount in mounts]
        return [expandable(word) for word in [*words, "--workdir=$PWD"]]


class EdfConfig(Unmounted):
    """CSCS's container engine, whose image and mounts stand in an environment definition file
    (docs.cscs.ch, "Container Engine")."""

    kind: Literal["edf"]
    image: str
    """The file, absolute, or its name below ~/.edf. Its mounts must show the working and the run
    directory, and its [env] is where the image's own variables are overridden."""

    def srun_options(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[Setting]:
        del mounts, names
        return [Setting("environment", IMAGE, SITE)]
