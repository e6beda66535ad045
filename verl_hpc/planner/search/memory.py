"""What a search asks of memory, and formulas that answer it.

The formulas leave out padding and small buffers; the ledger has the last word on what is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.hardware import Hardware
from verl_hpc.planner.search.cuts import Cut
from verl_hpc.planner.timing.generation import Engines
from verl_hpc.planner.timing.machine import element_size
from verl_hpc.planner.timing.operator_costs import CONTEXT_BYTES
from verl_hpc.planner.timing.passes import (
    Model,
    micro_batch_tokens,
    optimizer_parameters,
    parameters_per_rank,
)
from verl_hpc.planner.timing.workload import Workload

OUTSIDE_BYTES = 4 * 2**30
"""Of a device, for what is neither: the CUDA context, NCCL's buffers, fragments."""
SPARE_BYTES = 2 * 2**30
"""Left free, since activations are estimates."""


@dataclass(frozen=True)
class RoleBytes:
    """Of one role, on the rank that has most."""

    resident: int
    """Whatever computes, but while engines generate."""
    working: int
    """More, while it computes itself: activations and logits."""
    generating: int
    """What stays while engines generate on the same ranks."""


class Memory(Protocol):
    """Bytes of roles and engines on one device."""

    @property
    def limit(self) -> int | None:
        """That everything on a device may have together; None refuses nothing."""

    def role(self, name: str, cut: Cut) -> RoleBytes:
        """Of a role on a layout."""

    def engine(self, engines: Engines) -> tuple[int, int]:
        """Of a rollout rank: while weights arrive, and while it generates."""


class FormulaMemory:
    """Sizes of parameters, gradients in float32, Adam's state over data-parallel ranks, and
    activations of Transformer Engine's layers (arXiv 2205.05198, with fused attention)."""

    def __init__(
        self,
        config: RunConfig,
        archs: Mapping[str, Architecture],
        hardware: Hardware,
        work: Workload,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        """
        Args:
            config: of the run.
            archs: of every role.
            hardware: whose device it is.
            work: how it is cut into micro-batches.
            spare_bytes: left free.
        """
        self._config, self._archs, self._work = config, archs, work
        self._settings = config.role_settings
        self._hardware, self._spare = hardware, spare_bytes

    @property
    def limit(self) -> int | None:
        size = self._hardware.device_bytes
        if size is None:
            return None
        outside = OUTSIDE_BYTES if self._hardware.kind.is_gpu else 0
        return size - outside - self._spare

    def role(self, name: str, cut: Cut) -> RoleBytes:
        settings = self._settings[name]
        model = Model(
            self._archs[name],
            cut.layout,
            settings.head,
            settings.model.dtype,
            settings.model.fp8 is not None,
            cut.recompute,
        )
        parameters, size = parameters_per_rank(model), element_size(model.dtype)
        weights, gradients, optimizer = size * parameters, 0.0, 0.0
        if settings.trainable:
            gradients = 4 * parameters
            optimizer = (4 * (size < 4) + 8) * optimizer_parameters(model)
        # Transformer Engine's copies by rows and by columns; they are not offloaded.
        copies = 2 * parameters if model.fp8 else 0
        resident = weights + gradients + optimizer + copies
        stays = self._stays(settings)
        generating = stays[0] * weights + stays[1] * gradients + stays[2] * optimizer + copies
        return RoleBytes(int(resident), int(self._working(settings, model)), int(generating))

    def _stays(self, settings: RoleSettings) -> tuple[bool, bool, bool]:
        if not self._hardware.kind.is_gpu:
            return (True, True, True)
        offload = settings.offload
        return (not offload.parameters, not offload.gradients, not offload.optimizer)

    def _working(self, settings: RoleSettings, model: Model) -> float:
        arch, layout = model.arch, model.layout
        size = element_size(model.dtype)
        tokens = micro_batch_tokens(model, self._work, settings.trainable)
        logits = 0.0
        if model.has_logits:
            each = (2 * size if settings.trainable else size) * arch.vocab_size / layout.tp
            logits = tokens * each
        layer = tokens * _activations(model, size)
        if not settings.trainable:
            return layer + logits
        layers = arch.num_layers / layout.pp
        in_flight = layout.pp if layout.pp > 1 else 1
        chunks = 1 + (layout.pp - 1) / (layout.pp * layout.vpp) if layout.vpp > 1 else 1.0
        held = layers * in_flight * chunks
        if model.recompute == "full":
            return held * tokens * arch.hidden_size * size / layout.tp + layer + logits
        return held * layer + logits

    def engine(self, engines: Engines) -> tuple[int, int]:
        rollout = self._config.rollout
        weights = engines.weight_bytes
        if rollout.kv_cache_gib is not None:
            return int(weights), int(weights + rollout.kv_cache_gib * 2**30 + CONTEXT_BYTES)
        size = self._hardware.device_bytes
        if size is None or not self._hardware.kind.is_gpu:
            return int(weights), int(weights + (engines.cache_bytes or 2**30))
        return int(weights), int(rollout.gpu_memory_utilization * size)


def _activations(model: Model, size: int) -> float:
    """Bytes of a layer that one token leaves for the backward pass: the inputs of its two norms and
    of its four products, queries, keys and values, the result of attention, gate and up.

    With tensor parallelism they are shared out, those of norms by sequence parallelism.
    """
    arch = model.arch
    mlp = 3 * arch.ffn_size * max(arch.experts_per_token, 1)
    each = 4 * arch.hidden_size + 2 * arch.q_size + 2 * arch.kv_size + mlp
    if model.recompute == "selective":
        each -= mlp
    return size * each / model.layout.tp
