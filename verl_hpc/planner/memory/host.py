"""Host memory of one rank: what its process takes, and copies of what is on its device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from verl_hpc.planner.memory import overheads, role
from verl_hpc.planner.memory.planned_run import PlannedRun
from verl_hpc.planner.memory.transfer import page_locked
from verl_hpc.planner.shape import RoleShape

Terms = dict[str, int]


class RoleOnRank(NamedTuple):
    """An engine on a rank."""

    shape: RoleShape
    stage: int
    replica: int
    shared: int = 0
    """Bytes of its frozen parameters that another role holds and that are counted there."""

    def resident(self) -> Terms:
        """Bytes that the engine holds from step to step."""
        terms = role.resident(self.shape, self.stage, self.replica)
        return terms | {"weights": terms["weights"] - self.shared}


class HostMemory:
    """Host memory of one rank, by term.

    Args:
        run: the planned run.
        here: engines of the rank by role.
        generates: whether a rollout engine is on the rank.
    """

    def __init__(self, run: PlannedRun, here: Mapping[str, RoleOnRank], generates: bool) -> None:
        self._run, self._here, self._generates = run, here, generates
        self._on_gpu = run.hardware.kind.is_gpu

    def goes(self, name: str, part: str) -> bool:
        """Whether a part of a role, a setting of `offload`, leaves the device in every step."""
        return self._generates and bool(getattr(self._run.settings[name].offload, part))

    def _copy(self, shape: RoleShape, num_bytes: int, stays: bool) -> int:
        """Bytes of a copy: page-locked if it stays, on GPUs. A search leaves out rounding."""
        return page_locked(num_bytes) if stays and self._on_gpu and shape.padded else num_bytes

    def process(self) -> Terms:
        """Python and its libraries."""
        return {"process": overheads.PROCESS if self._on_gpu else overheads.CPU_PROCESS}

    def page_locked(self) -> Terms:
        """Permanent host copies: initial weights of references that share an engine, and on GPUs
        whatever is offloaded. On cores, offloading takes as much as it frees, and only while it
        lasts."""
        terms: Terms = {}
        for name in self._here:
            shares = [r.name for r in self._run.settings.values() if r.shares == name]
            terms |= {f"{other}.weights": self.first_copy(name) for other in shares}
            if self._on_gpu and shares:
                terms[f"{name}.weights_copy"] = self.first_copy(name)
        return terms | (self.put_away() if self._on_gpu else {})

    def trained_copies(self) -> Terms:
        """Host copies of everything trained, while a rollout engine is built: page-locked for what
        is offloaded in every step, ordinary memory for the rest."""
        terms: Terms = {}
        for name, (shape, *_) in self._here.items():
            terms[f"{name}.weights_copy"] = self.weights_copy(name, self.goes(name, "parameters"))
            if shape.trainable:
                stays = self.goes(name, "optimizer")
                terms[f"{name}.optimizer_copy"] = self.optimizer_copy(name, stays)
        return terms

    def put_away_while_sending(self) -> Terms:
        """Copies of what is offloaded while the first role's parameters are sent."""
        sent = f"{next(iter(self._run.settings), None)}.weights_copy"
        return {name: size for name, size in self.put_away().items() if name != sent}

    def put_away(self) -> Terms:
        """Copies of what is offloaded while engines generate."""
        terms: Terms = {}
        for name in self._here:
            if self.goes(name, "parameters"):
                terms[f"{name}.weights_copy"] = self.weights_copy(name)
            if self.goes(name, "optimizer"):
                terms[f"{name}.optimizer_copy"] = self.optimizer_copy(name)
        return terms

    def weights_copy(self, name: str, stays: bool = True) -> int:
        """Host copy of a role's parameters: trained ones and frozen ones apart."""
        shape, stage, _, shared = self._here[name]
        if not shape.trainable:
            return self._copy(shape, role.weights(shape, stage), stays)
        frozen = self._copy(shape, role.frozen(shape, stage) - shared, stays)
        return self._trained_copy(name, stays) + frozen

    def first_copy(self, name: str) -> int:
        """Host copy of the initial values of what is trained; 0 for adapters that start at zero,
        since they are simply left out."""
        lora = self._run.settings[name].lora
        return 0 if lora is not None and lora.path is None else self._trained_copy(name)

    def _trained_copy(self, name: str, stays: bool = True) -> int:
        shape, stage, *_ = self._here[name]
        elements = role.buffer_elements(shape, stage)
        return self._copy(shape, elements * shape.kept_bytes, stays)

    def optimizer_copy(self, name: str, stays: bool = True) -> int:
        """Host copy of master weights and moments."""
        shape, stage, replica, _ = self._here[name]
        of_element = shape.moments_bytes + role.MASTER_BYTES * shape.has_masters
        owned = of_element * role.owned_elements(shape, stage, replica)
        return self._copy(shape, owned, stays)

    def saved(self) -> Terms:
        """Host copy from which a background checkpoint is written."""
        if not self._run.config.checkpoint.background:
            return {}
        terms: Terms = {}
        for name, (shape, stage, replica, _) in self._here.items():
            if shape.trainable:
                trained = role.weights(shape, stage) - role.frozen(shape, stage)
                of_element = role.MASTER_BYTES + shape.moments_bytes
                owned = of_element * role.owned_elements(shape, stage, replica)
                if shape.is_sharded:
                    # Ranks with the same rows each write an equal part of weights and state.
                    copies = shape.layout.dp // shape.layout.num_shards
                    terms[f"{name}.saved"] = (trained + owned) // copies
                else:
                    terms[f"{name}.saved"] = trained // shape.layout.dp + owned
        return terms
