"""Podman and Docker: each rank starts a container of its own from one image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from verl_hpc.cluster.container_base import Container
from verl_hpc.cluster.mounts import IMAGE, Mount, MountText
from verl_hpc.cluster.shell import expandable, literal

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

Gpu = Literal["nvidia", "amd", "none"]
_AMD = ("--device=/dev/kfd", "--device=/dev/dri")


class _OciConfig(Container):
    """What both kinds share."""

    image: str
    """Name of an image that every node has, or gets from a registry: NAME[:TAG]."""
    mounts: list[MountText] = []
    """More mounts than the working, run and scratch directories: SOURCE[:TARGET[:ro]]."""
    gpu: Gpu = "nvidia"
    """Vendor whose devices the container gets, all of the node's, or none."""
    options: list[str] = []
    """More options of `run`, such as --device=/dev/infiniband or --ulimit=host."""

    _devices: ClassVar[Mapping[Gpu, Sequence[str]]]

    def _gpu_options(self) -> Sequence[str]:
        return self._devices[self.gpu]

    def _prefix(self, program: str, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        # Ranks of a node share memory and see each other's processes, as MPI and NCCL need it.
        words = ["--rm", "--network=host", "--ipc=host", "--pid=host", "--entrypoint="]
        words += self._gpu_options()
        words += [f"--volume={mount.text}" for mount in mounts]
        words += [f"--env={name}" for name in names]
        words += ["--workdir=$PWD", *self.options, IMAGE]
        return ["bash", "-c", literal(_ENTER), program, program, *map(expandable, words)]


class PodmanConfig(_OciConfig):
    """Podman, without root: root inside the container is the user outside."""

    kind: Literal["podman"]
    program: Literal["podman", "podman-hpc"] = "podman"
    """podman-hpc is NERSC's, whose --gpu brings in NVIDIA's devices and driver."""

    _devices = {
        "nvidia": ("--device=nvidia.com/gpu=all",),
        "amd": (*_AMD, "--group-add=keep-groups"),
        "none": (),
    }

    @model_validator(mode="after")
    def _check_gpu(self) -> Self:
        if self.program == "podman-hpc" and self.gpu == "amd":
            raise ValueError("podman-hpc brings in no gpu 'amd'; write nvidia or none")
        return self

    def _gpu_options(self) -> Sequence[str]:
        if self.program == "podman-hpc" and self.gpu == "nvidia":
            return ("--gpu",)
        return super()._gpu_options()

    def prefix(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        return self._prefix(self.program, mounts, names)


class DockerConfig(_OciConfig):
    """Docker, whose daemon starts ranks with the ids and the groups of the user."""

    kind: Literal["docker"]

    _devices = {"nvidia": ("--gpus=all",), "amd": _AMD, "none": ()}

    def prefix(self, mounts: Sequence[Mount], names: Sequence[str]) -> list[str]:
        return self._prefix(self.kind, mounts, names)
