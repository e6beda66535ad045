"""The model, layout and settings that decide the memory and the time of one role."""

from __future__ import annotations

from dataclasses import dataclass, replace

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import Engine, Fp8Config, ModelConfig, ParallelConfig
from verl_hpc.config.roles import RoleSettings
from verl_hpc.layout.adapters import AdapterShape
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import kept_dtype
from verl_hpc.layout.heads import Head
from verl_hpc.layout.megatron import Backend, TrainLayout
from verl_hpc.layout.pipeline import layers_per_stage, stage_layers
from verl_hpc.layout.shard_map import ITEM_BYTES


@dataclass(frozen=True)
class RoleShape:
    """A model, its layout and its settings; hashable, so that results can be cached."""

    arch: Architecture
    layout: TrainLayout
    dtype: str = "bfloat16"
    head: Head = "language_model"
    trainable: bool = True
    fp8: Fp8Config | None = None
    on_gpu: bool = True
    adapters: AdapterShape | None = None
    """Adapters that are trained in place of the parameters."""
    engine: Engine = "megatron"
    moments: str = "float32"
    """Element type of Adam's moments."""
    sequence_parallel: bool = False
    recompute: str = "none"
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()
    offload_activations: bool = False
    reshard_after_forward: bool = True
    reduce_dtype: str = "float32"
    frozen_tower: bool = False
    padded: bool = True
    """Whether buffers and page-locked copies are counted with their padding; a search, which
    compares thousands of layouts, leaves it out."""

    @classmethod
    def of(
        cls,
        arch: Architecture,
        layout: TrainLayout,
        model: ModelConfig,
        parallel: ParallelConfig,
        *,
        head: Head = "language_model",
        trainable: bool = True,
        on_gpu: bool = True,
        lora: LoraConfig | None = None,
        moments: str = "float32",
    ) -> RoleShape:
        """Build a shape from the arguments of `engines.factory.build_engine`."""
        sharded = parallel.fsdp or FsdpConfig()
        return cls(
            replace(arch, rope_scaling=None, rope_theta=1.0),
            replace(layout, first_rank=0),
            model.dtype,
            head,
            trainable,
            model.fp8,
            on_gpu,
            AdapterShape.of(lora) if lora is not None else None,
            parallel.engine,
            moments,
            parallel.sequence_parallel,
            parallel.recompute,
            parallel.recompute_method,
            parallel.recompute_num_layers,
            tuple(parallel.recompute_modules or ()),
            parallel.offload_activations,
            sharded.reshard_after_forward,
            sharded.reduce_dtype,
            model.vision_tower == "frozen",
        )

    @classmethod
    def of_role(
        cls, settings: RoleSettings, arch: Architecture, layout: TrainLayout, on_gpu: bool
    ) -> RoleShape:
        """Build the shape of a role of a run."""
        return cls.of(
            arch,
            layout,
            settings.model,
            settings.parallel,
            head=settings.head,
            trainable=settings.trainable,
            on_gpu=on_gpu,
            lora=settings.lora,
            moments=settings.moments,
        )

    @property
    def backend(self) -> Backend:
        """Backend that `engines.megatron.precision.choose_backend` picks, with Transformer Engine
        on GPUs; transformers' layers keep the same activations as Megatron-core's local ones."""
        if self.is_sharded or self.arch.sinks:
            return "local"
        return "transformer_engine" if self.on_gpu and self.dtype != "float32" else "local"

    @property
    def is_sharded(self) -> bool:
        """Whether every parameter is sharded over all ranks."""
        return self.engine == "fsdp"

    @property
    def item_bytes(self) -> int:
        """Bytes of an element in the dtype of computation."""
        return ITEM_BYTES[self.dtype]

    @property
    def kept_bytes(self) -> int:
        """Bytes of an element in the dtype that persists from step to step."""
        return ITEM_BYTES[kept_dtype(self.dtype, self.trainable and self.is_sharded)]

    @property
    def has_masters(self) -> bool:
        """Whether master weights are separate from the parameters."""
        return self.kept_bytes < 4

    @property
    def moments_bytes(self) -> int:
        """Bytes of both of Adam's moments of an element."""
        return 2 * ITEM_BYTES[self.moments]

    @property
    def has_logits(self) -> bool:
        return self.head == "language_model"

    @property
    def layers(self) -> tuple[tuple[int, ...], ...]:
        """Number of layers as `[chunk][stage]`."""
        return layers_per_stage(self.arch.num_layers, self.layout.pp, self.layout.vpp)

    def kinds(self, stage: int, chunk: int) -> tuple[int, ...]:
        """For each layer of a chunk of a stage the first layer that is like it."""
        layers = stage_layers(self.layers, stage, chunk)
        return tuple(map(self.arch.first_alike, layers))

    def kinds_of_stage(self, stage: int) -> tuple[int, ...]:
        return tuple(kind for c in range(self.layout.vpp) for kind in self.kinds(stage, c))

    @property
    def shares_embedding(self) -> bool:
        """Whether the output layer is the embedding."""
        return self.arch.tied_embeddings and self.has_logits

    @property
    def sums_embeddings(self) -> bool:
        """Whether the first and the last stage sum their gradients of one embedding."""
        return self.trainable and self.adapters is None and self.shares_embedding

    def is_last(self, stage: int) -> bool:
        return stage == self.layout.pp - 1
