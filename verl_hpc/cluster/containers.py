"""Kinds of containers. A class says all that is particular to a kind, `ContainerConfig` lists them.

A kind says how srun, or the command that srun starts, gets into it; values may use variables of the
script.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from verl_hpc.cluster.mounts import IMAGE, Mount, MountText
from verl_hpc.cluster.setting import DEFAULT, SITE, Setting
from verl_hpc.cluster.shell import expandable, literal
from verl_hpc.runs.verdict import Verdict, fails, listed, ok, unknown
from verl_hpc.section import Section

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

# Neither hands on the environment. PMI2 talks over a descriptor, which Podman passes on if it is 3.
# Docker's daemon runs as root: ranks must have the user's ids all the same.
_ENTER = """\
program=$1; shift
for start in SLURM PMI USER LOGNAME CUDA_VISIBLE ROCR_VISIBLE HIP_VISIBLE; do
    for name in $(compgen -e "$start"); do set -- --env="$name" "$@"; done
done
if [ "$program" = docker ]; then
    for group in $(id -G); do set -- --group-add="$group" "$@"; done
    # An image knows no user of that number, whose home would be /.
    set -- --user="$(id -u):$(id -g)" --env=HOME=/tmp "$@"
elif [ -n "${PMI_FD-}" ]; then
    exec 3>&"$PMI_FD"
    export PMI_FD=3
    set -- --preserve-fds=1 "$@"
fi
exec "$program" run "$@\""""


class Container(Section):
    """A kind of container. Each has an `image`, path or name, which is None where ranks run in the
    node's own file system, and `mounts`, what the site mounts besides what every job needs."""

    takes_mounts: ClassVar[bool] = True
    """Whether the job says what is mounted."""
    option: ClassVar[str | None] = None
    """Option of srun that enters it, by a plugin; None where a program does."""
    may_be_a_file: ClassVar[bool] = True
    """Whether `image` may be the path of the image itself."""

    def problem(self, mpi: str, shares_gpus: bool) -> str | None:
        """Why it does not go with the rest of a profile; None if it does.

        Args:
            mpi: what the profile says.
            shares_gpus: whether other jobs may have GPUs of the same node.
        """
        del mpi, shares_gpus
        return None

    def look(self, directories: Sequence[Path]) -> Verdict | None:
        """The doctor's verdict of a kind that is looked for in a way of its own; None of others.

        Args:
            directories: that ranks must see.
        """
        del directories
        return None

    def shows(self, path: Path) -> bool:
        """Whether ranks see a path of the host without any mount."""
        del path
        return False

    def srun_options(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[Setting]:
        """Options of srun; `names` are the variables that must reach the ranks."""
        del mounts, names
        return []

    def prefix(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        """Words before the command that srun starts, quoted for the shell; `names` as above."""
        del mounts, names
        return []


class Unmounted(Container):
    """A kind whose file systems the job does not choose, so that ranks see every path."""

    takes_mounts: ClassVar[bool] = False

    @property
    def mounts(self) -> list[str]:
        return []

    def shows(self, path: Path) -> bool:
        del path
        return True


class BareConfig(Unmounted):
    """No container: a virtual environment or modules on a shared file system."""

    kind: Literal["bare"] = "bare"

    @property
    def image(self) -> str | None:
        return None


class PyxisConfig(Container):
    """Enroot images through the pyxis plugin of srun."""

    option: ClassVar[str | None] = "--container-image"

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


_AMD = ("--device=/dev/kfd", "--device=/dev/dri")
_DEVICES = {
    ("podman", "nvidia"): ("--device=nvidia.com/gpu=all",),
    ("podman", "amd"): (*_AMD, "--group-add=keep-groups"),
    ("podman-hpc", "nvidia"): ("--gpu",),
    ("docker", "nvidia"): ("--gpus=all",),
    ("docker", "amd"): _AMD,
}
"""Options that bring in the GPUs, by program and vendor."""


class _OciConfig(Container):
    """What both kinds share."""

    kind: str
    image: str
    """Name of an image that every node has, or gets from a registry: NAME[:TAG]."""
    mounts: list[MountText] = []
    """More mounts than the working, run and scratch directories: SOURCE[:TARGET[:ro]]."""
    gpu: Literal["nvidia", "amd", "none"] = "nvidia"
    """Vendor whose devices the container gets, all of the node's, or none."""
    options: list[str] = []
    """More options of `run`, such as --device=/dev/infiniband or --ulimit=host."""

    def problem(self, mpi: str, shares_gpus: bool) -> str | None:
        del mpi
        if not shares_gpus:
            return None
        return (
            f"container.kind = {self.kind} with exclusive = false: such a container sees all GPUs "
            "of the node, and what Slurm calls the job's first GPU is another job's there "
            "(NVIDIA/nvidia-container-toolkit issue 211); set exclusive: true, or use "
            "apptainer or pyxis"
        )

    def _prefix(self, program: str, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        # Ranks of a node share memory and see each other's processes, as MPI and NCCL need it.
        words = ["--rm", "--network=host", "--ipc=host", "--pid=host", "--entrypoint="]
        words += _DEVICES.get((program, self.gpu), ())
        words += [f"--volume={mount.text}" for mount in mounts]
        words += [f"--env={name}" for name in names]
        words += ["--workdir=$PWD", *self.options, IMAGE]
        return ["bash", "-c", literal(_ENTER), program, program, *map(expandable, words)]


class PodmanConfig(_OciConfig):
    """Podman, without root: root inside the container is the user outside."""

    kind: Literal["podman"]
    program: Literal["podman", "podman-hpc"] = "podman"
    """podman-hpc is NERSC's, whose --gpu brings in NVIDIA's devices and driver."""

    @model_validator(mode="after")
    def _check_gpu(self) -> Self:
        if self.program == "podman-hpc" and self.gpu == "amd":
            raise ValueError("podman-hpc brings in no gpu 'amd'; write nvidia or none")
        return self

    def prefix(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        return self._prefix(self.program, mounts, names)


class DockerConfig(_OciConfig):
    """Docker, whose daemon starts ranks with the ids and the groups of the user."""

    kind: Literal["docker"]

    def problem(self, mpi: str, shares_gpus: bool) -> str | None:
        if mpi == "pmi2":
            return (
                "container.kind = docker with mpi = pmi2: ranks are started by Docker's daemon, "
                "which cannot give them the descriptor that PMI2 talks over; set mpi: none, or use "
                "kind: podman"
            )
        return super().problem(mpi, shares_gpus)

    def prefix(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        return self._prefix(self.kind, mounts, names)


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

    option: ClassVar[str | None] = "--environment"
    may_be_a_file: ClassVar[bool] = False

    kind: Literal["edf"]
    image: str
    """The file, absolute, or its name below ~/.edf. Its mounts must show the working and the run
    directory, and its [env] is where the image's own variables are overridden."""

    def srun_options(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[Setting]:
        del mounts, names
        return [Setting("environment", IMAGE, SITE)]

    def look(self, directories: Sequence[Path]) -> Verdict:
        places = self._places()
        file = next((path for path in places if path.is_file()), None)
        if file is None:
            where = listed(list(map(str, places)))
            return fails("container", f"no environment definition file {where}", "write it there")
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            todo = "correct it: srun --environment reads TOML"
            return fails("container", f"{file}: {error}", todo)
        if "base_environment" in tree:
            return unknown("container", f"{file}: its base_environment is not looked into")
        image = os.path.expandvars(str(tree.get("image", "")))
        if not image:
            return fails("container", f"{file} names no image", "set image there")
        if image.startswith("/") and not Path(image).exists():
            return fails("container", f"{file}: its image {image} does not exist", "build it")
        targets = list(_targets(tree))
        hidden = [str(path) for path in directories if not any(map(path.is_relative_to, targets))]
        if hidden:
            todo = f"add to its mounts: {', '.join(f'{path}:{path}' for path in hidden)}"
            return fails("container", f"{file}: no mount shows {listed(hidden)}", todo)
        return ok("container", f"edf: {file} with {image}")

    def _places(self) -> list[Path]:
        """Where srun looks for an environment: a path, or a name below EDF_PATH or ~/.edf."""
        if "/" in self.image:
            return [Path(os.path.expandvars(self.image))]
        directories = [Path(place) for place in os.environ.get("EDF_PATH", "").split(":") if place]
        return [place / f"{self.image}.toml" for place in (*directories, Path.home() / ".edf")]


def _targets(tree: dict[str, Any]) -> Iterator[str]:
    for mount in tree.get("mounts", ()):
        source, _, rest = os.path.expandvars(str(mount)).partition(":")
        yield rest.partition(":")[0] or source


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
