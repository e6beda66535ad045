"""What differs between kinds of containers; values may use variables of the script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from verl_hpc.cluster.mounts import Mount
from verl_hpc.cluster.setting import Setting
from verl_hpc.section import Section


class Container(Section):
    """A kind of container. Each has an `image`, path or name, which is None where ranks run in the
    node's own file system, and `mounts`, what the site mounts besides what every job needs."""

    takes_mounts: ClassVar[bool] = True
    """Whether the job says what is mounted."""

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
