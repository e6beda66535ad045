"""What one submission asks for: a run's configuration, a site, and the command line's words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_hpc.cluster.profile import Profile
from verl_hpc.cluster.setting import COMMAND_LINE, DEFAULT, PLAN, RUN_CONFIG, Setting
from verl_hpc.cluster.shell import check_path
from verl_hpc.config.run import RunConfig
from verl_hpc.config.settings import leaves
from verl_hpc.planner.record import Record


@dataclass(frozen=True)
class Request:
    """Everything that decides what a job looks like; two equal ones give the same script."""

    config: RunConfig
    config_path: str
    overrides: tuple[str, ...]
    """Words such as optimizer.lr=1e-6, which are in `config` already."""
    profile: Profile
    nodes: int
    time: str
    directory: Path
    """Where the submission is made, and the job runs."""
    standalone: bool = False
    """The script is for sbatch, by hand, from a checkout of this repository: it names paths as
    they were given and runs the code and the configuration that it finds there."""
    in_array: bool = False
    """The run is one of a sweep."""
    program: Literal["train", "doctor"] = "train"
    """What ranks run; the doctor's checks are not requeued, and have no signal to save on."""
    excluded: tuple[str, ...] = ()
    """Nodes that must not be used, because the doctor found something wrong with them."""
    exclude_list: str = ""
    """The file that says so."""
    record: Record | None = None
    """Record of the search that has found the layouts of `config`."""

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.profile.site.ranks_per_node

    @property
    def run_directory(self) -> Path:
        """Path of the run directory in the script; absolute where the script is kept in it."""
        path = self.config.run_directory
        path = path if self.standalone else self.directory / path
        return Path(check_path("directory", str(path)))

    @property
    def runs_elsewhere(self) -> bool:
        """Whether the run directory is outside the directory the job runs in."""
        return not (self.directory / self.config.run_directory).is_relative_to(self.directory)

    def origin(self, name: str) -> str:
        """Who gave a top-level setting of the run its value."""
        if self.record is not None and self.record.covers(name):
            return PLAN
        if any(word.startswith(f"{name}=") for word in self.overrides):
            return COMMAND_LINE
        return RUN_CONFIG if name in self.config.model_fields_set else DEFAULT

    def given(self) -> Iterator[Setting]:
        """The run's settings that a file or the command line has set, by dotted name."""
        words = dict(word.partition("=")[::2] for word in self.overrides)
        for name, value, is_set in leaves(self.config):
            if not is_set or value == {}:
                continue
            overridden = any(name == w or name.startswith(f"{w}.") for w in words)
            origin = COMMAND_LINE if overridden else RUN_CONFIG
            if self.record is not None and self.record.covers(name):
                origin = PLAN
            yield Setting(name, str(value), origin)
