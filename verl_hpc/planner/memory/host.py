"""Host memory of one rank: what its process takes, and copies of what is on its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from verl_hpc.planner.memory import overheads, role
from verl_hpc.planner.memory.planned_run import PlannedRun
from verl_hpc.planner.memory.shape import RoleShape
from verl_hpc.planner.memory.transfer import host_copy

Terms = dict[str, int]


class RoleOnRank(NamedTuple):
    """An engine on a rank."""

    shape: RoleShape
    stage: int
    replica: int
    shared: int = 0
    """Bytes of its frozen parameters that are another's, where they are counted."""

    def resident(self) -> Terms:
        """What it holds from step to step."""
        found = role.resident(self.shape, self.stage, self.replica)
        return found | {"weights": found["weights"] - self.shared}


class HostMemory:
    """Terms of one rank.

    Args:
        run: whose memory it is.
        here: engines of the rank by role.
        goes: whether a part of a role (`parameters`, `optimizer`) leaves the device in every step.
    """

    def __init__(
        self, run: PlannedRun, here: Mapping[str, RoleOnRank], goes: Callable[[str, str], bool]
    ) -> None:
        self._run, self._here, self._goes = run, here, goes
        self._on_gpu = run.hardware.kind.is_gpu

    def process(self) -> Terms:
        """Python and its libraries."""
        return {"process": overheads.PROCESS if self._on_gpu else overheads.CPU_PROCESS}

    def page_locked(self) -> Terms:
        """Copies that stay once they were made: references that share an engine, and on GPUs what
        is put away. On cores that takes as much as it frees, and goes when it comes back."""
        terms: Terms = {}
        for name in self._here:
            shares = [r.name for r in self._run.settings.values() if r.shares == name]
            terms |= {f"{other}.weights": self.first_copy(name) for other in shares}
            if self._on_gpu and shares:
                terms[f"{name}.weights_copy"] = self.first_copy(name)
        return terms | (self.put_away() if self._on_gpu else {})

    def trained_copies(self) -> Terms:
        """Copies of all that is trained, while a rollout engine is built: in page-locked memory
        what is put away in every step as well, in ordinary memory the rest."""
        terms: Terms = {}
        for name, (shape, *_) in self._here.items():
            terms[f"{name}.weights_copy"] = self.weights_copy(name, self._goes(name, "parameters"))
            if shape.trainable:
                stays = self._goes(name, "optimizer")
                terms[f"{name}.optimizer_copy"] = self.optimizer_copy(name, stays)
        return terms

    def put_away(self) -> Terms:
        """Copies of what is offloaded while engines generate."""
        terms: Terms = {}
        for name in self._here:
            if self._goes(name, "parameters"):
                terms[f"{name}.weights_copy"] = self.weights_copy(name)
            if self._goes(name, "optimizer"):
                terms[f"{name}.optimizer_copy"] = self.optimizer_copy(name)
        return terms

    def weights_copy(self, name: str, page_locked: bool = True) -> int:
        """Of a role's parameters; on cores all memory is ordinary."""
        shape, stage, _, shared = self._here[name]
        if not shape.trainable:
            return host_copy([role.weights(shape, stage)], page_locked and self._on_gpu)
        frozen = role.frozen(shape, stage) - shared
        return self._trained_copy(name, page_locked) + host_copy(
            [frozen] if frozen else [], page_locked and self._on_gpu
        )

    def first_copy(self, name: str) -> int:
        """Of what training changes, as it was at the start; adapters that began at zero are left
        out instead."""
        lora = self._run.settings[name].lora
        return 0 if lora is not None and lora.path is None else self._trained_copy(name)

    def _trained_copy(self, name: str, page_locked: bool = True) -> int:
        shape, stage, *_ = self._here[name]
        elements = [buffer.num_elements for buffer in role.buffers(shape, stage)]
        return host_copy([n * shape.kept_bytes for n in elements], page_locked and self._on_gpu)

    def optimizer_copy(self, name: str, page_locked: bool = True) -> int:
        """Of master weights and moments: a piece of memory for each owned range."""
        shape, stage, replica, _ = self._here[name]
        ranges = [n * role.MASTER_BYTES for n in role.owned_ranges(shape, stage, replica)]
        kinds = 3 if shape.has_masters else 2
        return kinds * host_copy(ranges, page_locked and self._on_gpu)

    def saved(self) -> Terms:
        """The copy that a checkpoint is written from while the run goes on."""
        if not self._run.config.checkpoint.background:
            return {}
        terms: Terms = {}
        for name, (shape, stage, replica, _) in self._here.items():
            if shape.trainable:
                trained = role.weights(shape, stage) - role.frozen(shape, stage)
                owned = 3 * role.MASTER_BYTES * role.owned_elements(shape, stage, replica)
                if shape.is_sharded:
                    # Of ranks with the same rows each writes a part, of weights and of state.
                    copies = shape.layout.dp // shape.layout.num_shards
                    terms[f"{name}.saved"] = (trained + owned) // copies
                else:
                    terms[f"{name}.saved"] = trained // shape.layout.dp + owned
        return terms
