"""Groups of ranks by what they share, as verl's tutorials hand them to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_hpc.errors import ConfigError

_KINDS = ("tensor", "pipeline", "data", "context", "expert")


@dataclass(frozen=True)
class DeviceMesh:
    """A process group, and what its ranks share.

    Args:
        kind: tensor, pipeline, data, context or expert.
        group: a group of torch.distributed, or None for this rank alone.

    Raises:
        ConfigError: another kind.
    """

    kind: str
    group: Any = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigError(f"DeviceMesh: kind = {self.kind!r}; choose {', '.join(_KINDS)}")

    @property
    def size(self) -> int:
        """Ranks of the group."""
        if self.group is None:
            return 1
        size = getattr(self.group, "size", None)
        found = size() if callable(size) else None
        if not isinstance(found, int):  # a tensor's is a shape
            raise ConfigError(
                f"DeviceMesh({self.kind!r}): group is {type(self.group).__name__}; expected a "
                "group of torch.distributed, or None"
            )
        return found


def check_mesh(mesh: DeviceMesh | None, kind: str, argument: str) -> None:
    """Raises: ConfigError: it is of another kind, or of more ranks than a whole model is on."""
    if mesh is None:
        return
    if not isinstance(mesh, DeviceMesh):
        raise ConfigError(
            f'set_device_mesh: {argument} is {type(mesh).__name__}; expected DeviceMesh("{kind}", '
            "group)"
        )
    if mesh.kind != kind:
        raise ConfigError(
            f"set_device_mesh: {argument} is a mesh of kind {mesh.kind}; expected {kind}"
        )
    if mesh.size > 1:
        raise ConfigError(
            f"set_device_mesh: {argument} has {mesh.size} ranks, and a model that is handed over "
            f"in Python has whole weights in one process; set parallel.{kind}_parallel: "
            f"{mesh.size} in a run's YAML and start it with `python -m verl_hpc train --ranks "
            f"{mesh.size}`, srun or mpiexec, which cut the model and make the groups"
        )
