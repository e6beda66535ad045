"""Kinds of containers. Each says how srun, or the command that srun starts, gets into it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.cluster.centre_containers import EdfConfig, ShifterConfig
from verl_hpc.cluster.container_base import Container, Unmounted
from verl_hpc.cluster.mounts import IMAGE, Mount, MountText
from verl_hpc.cluster.oci import DockerConfig, PodmanConfig
from verl_hpc.cluster.setting import DEFAULT, SITE, Setting
from verl_hpc.cluster.shell import expandable, literal

# A rank that wraps another process must hand on Slurm's signals: where Slurm tracks processes by
# cgroup, "inherited processes will only get SIGKILL" (proctrack_cgroup.c). Where it does not, it
# signals all of them, bubblewrap included, which would die of it. The status comes through a pipe:
# bash's `wait` loses that of a process that ends while a signal comes, and gives 255.
_PASS_ON = """\
pass_on() { { kill -"$1" $(for bwrap in $(</proc/$!/task/$!/children); do
    cat "/proc/$bwrap/task/$bwrap/children"; done); } 2>/dev/null; }
trap "pass_on USR2" USR2; trap "pass_on TERM" TERM
exec {pipe}<> <(:)
(trap "" USR2 TERM; "$@" {pipe}>&-; echo $? >&$pipe) <&0 &
until wait $!; [ ! -e /proc/$! ]; do :; done
trap "" USR2 TERM; read -r -t 1 status <&$pipe; exit ${status:-1}"""


class BareConfig(Unmounted):
    """No container: a virtual environment or modules on a shared file system."""

    kind: Literal["bare"] = "bare"

    @property
    def image(self) -> str | None:
        return None


class PyxisConfig(Container):
    """Enroot images through the pyxis plugin of srun."""

    kind: Literal["pyxis"]
    image: str
    """A .sqsh file that compute nodes can read, or registry#name:tag."""
    mounts: list[MountText] = []
    """More mounts than the working, run and scratch directories: SOURCE[:TARGET[:ro]]."""
    mount_home: bool = False
    """Show the home directory; packages in ~/.local would then shadow the image's."""

    def shows(self, path: Path) -> bool:
        return self.mount_home and path.is_relative_to(Path.home())

    def srun_options(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[Setting]:
        home = "container-mount-home" if self.mount_home else "no-container-mount-home"
        options = [
            Setting("container-image", IMAGE, SITE),
            Setting("container-mounts", ",".join(mount.text for mount in mounts), SITE),
            Setting("container-workdir", "$PWD", DEFAULT),
            Setting(home, None, SITE if "mount_home" in self.model_fields_set else DEFAULT),
            # Without it, a value that the image sets wins over the job's.
            Setting("container-env", ",".join(names), DEFAULT),
        ]
        return [option for option in options if option.value != ""]


class ApptainerConfig(Container):
    """Apptainer or Singularity, started by every rank."""

    kind: Literal["apptainer"]
    image: str
    """A .sif file, or a sandbox directory, that compute nodes can read."""
    mounts: list[MountText] = []
    """More mounts than the working, run and scratch directories: SOURCE[:TARGET[:ro]]."""
    program: str = "apptainer"
    """apptainer, singularity, or the path of one."""
    gpu: Literal["nvidia", "amd", "none"] = "nvidia"
    """Vendor whose driver libraries the container gets: --nv, --rocm, or none."""
    options: list[str] = []
    """More options of `exec`, such as --sharens."""

    def shows(self, path: Path) -> bool:
        return path.is_relative_to(Path.home()) or path.is_relative_to("/tmp")  # noqa: S108

    def prefix(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        del names
        driver = {"nvidia": ["--nv"], "amd": ["--rocm"], "none": []}[self.gpu]
        binds = [word for mount in mounts for word in ("--bind", mount.text)]
        words = [self.program, "exec", *driver, *binds, "--pwd", "$PWD", *self.options, IMAGE]
        return [expandable(word) for word in words]


class BwrapConfig(Container):
    """Bubblewrap on an unpacked root file system: a container without an installation."""

    kind: Literal["bwrap"]
    image: str
    """Directory that becomes /, read-only; / itself hides nothing and protects everything."""
    mounts: list[MountText] = []
    """More mounts than the working, run and scratch directories: SOURCE[:TARGET[:ro]]."""

    def shows(self, path: Path) -> bool:
        del path
        return self.image == "/"

    def prefix(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        del names
        words = ["bwrap", "--ro-bind", IMAGE, "/", "--dev-bind", "/dev", "/dev"]
        words += ["--proc", "/proc", "--ro-bind", "/sys", "/sys"]
        for mount in mounts:
            words += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.target]
        words += ["--chdir", "$PWD", "--"]
        return ["bash", "-c", literal(_PASS_ON), "bwrap", *map(expandable, words)]


ContainerConfig = Annotated[
    BareConfig
    | PyxisConfig
    | ApptainerConfig
    | BwrapConfig
    | PodmanConfig
    | DockerConfig
    | ShifterConfig
    | EdfConfig,
    Field(discriminator="kind"),
]
