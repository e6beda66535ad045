"""PyTorch's fully_shard as a training engine: weights, passes, updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.fsdp.attention import attending
from verl_hpc.engines.fsdp.build import (
    blank,
    build_decoder,
    local_part,
    sharded_modules,
    transformers_model,
)
from verl_hpc.engines.fsdp.kernels import choose_kernels
from verl_hpc.engines.fsdp.lora import Adapters
from verl_hpc.engines.fsdp.optimizer import MakeSchedule, ShardedAdam
from verl_hpc.engines.guarded_step import GuardedStep
from verl_hpc.engines.protocol import Head, OutputOptions
from verl_hpc.engines.shared.groups import LayoutGroups
from verl_hpc.engines.shared.layout_engine import LayoutEngine
from verl_hpc.engines.shared.micro_batches import Plan, Planner
from verl_hpc.engines.shared.offload import HostStore, Memory
from verl_hpc.engines.shared.outputs import Outputs
from verl_hpc.engines.shared.packing import PackedRow, pack
from verl_hpc.engines.shared.shared_prefixes import within
from verl_hpc.hf.images import ImageInputs, Images, image_reader
from verl_hpc.hf.model import stored_buffers
from verl_hpc.hf.pictures import unpacked
from verl_hpc.layout.adapters import trained_map
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import fsdp_shard_map, kept_dtype
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import Region, ShardMap, union
from verl_hpc.layout.writers import assign_writers


def engine_shard_map(
    arch: Architecture,
    layout: TrainLayout,
    model: ModelConfig,
    head: Head,
    trainable: bool,
    lora: LoraConfig | None = None,
) -> ShardMap:
    """Return the shard map of this model's engine; any rank may call it."""
    places = blank(arch, head, torch.float32).places if arch.published is not None else None
    kinds = _kinds(model, trainable, lora)
    return fsdp_shard_map(arch, layout, head=head, **kinds, places=places)


def _kinds(model: ModelConfig, trainable: bool, lora: LoraConfig | None) -> dict[str, str]:
    """Element types of the parameters, and of a one-number head."""
    return {
        "dtype": kept_dtype(model.dtype, trainable and lora is None),
        "head_dtype": kept_dtype(model.dtype, trainable),
    }


class FsdpEngine(LayoutEngine):
    """One model with its parameters sharded over all ranks of a layout (`TrainingEngine`).

    Raises:
        ClusterError: layers are to be compiled on a rank without a GPU.
        LayoutError: a size other than data parallelism.
    """

    def __init__(
        self,
        arch: Architecture,
        groups: LayoutGroups,
        model: ModelConfig,
        parallel: ParallelConfig,
        *,
        head: Head,
        optimizer: OptimizerConfig | None,
        max_tokens: int,
        name: str,
        schedule: MakeSchedule,
        lora: LoraConfig | None = None,
    ) -> None:
        assert lora is None or optimizer is not None, "adapters are there to be trained"
        self.arch, self.layout, self.head = arch, groups.layout, head
        kinds = _kinds(model, optimizer is not None, lora)
        self.dtype: torch.dtype = getattr(torch, kinds["dtype"])
        new = blank(arch, head, self.dtype, getattr(torch, kinds["head_dtype"]))
        self.shard_map = fsdp_shard_map(arch, groups.layout, head=head, **kinds, places=new.places)
        self.trained_map = trained_map(arch, self.shard_map, head, lora, groups.layout)
        self._adapters: Adapters | None = None
        if lora is not None:
            self._adapters = Adapters(new.module, self.trained_map, lora)
        self._groups, self._guard = groups, GuardedStep(name)
        self._packs = arch.published is None
        kernels = choose_kernels(model, parallel.fsdp or FsdpConfig(), not self._packs)
        self.decoder = build_decoder(
            new,
            groups,
            model.dtype,
            parallel,
            trainable=optimizer is not None,
            kernels=kernels,
            frozen_tower=model.vision_tower == "frozen",
            trained=self.trained_map.tensors if lora is not None else None,
        )
        self._modules = sharded_modules(self.decoder)
        reader, whole = image_reader(arch), transformers_model(self.decoder)
        self._images = ImageInputs(whole, reader) if reader is not None else None
        named = dict(self.decoder.named_parameters())
        shards = {n: local_part(p) for n, p in named.items()}
        self._shards = shards | stored_buffers(self.decoder)
        self.weights: Mapping[str, torch.Tensor] = {
            n: t for n, t in self._shards.items() if t.numel()
        }
        own = self.trained_map.tensors.keys() - self.shard_map.tensors.keys()
        everything = union([self.shard_map, self.trained_map.restricted_to(own)])
        if self._packs:
            check_parameters(everything, dist.get_rank(), self.weights, "transformers")
        else:
            held = {region.view.name for region in everything.held_by(dist.get_rank())}
            assert held == set(self.weights), held
        trained = {name: p for name, p in named.items() if p.requires_grad}
        self.optimizer: ShardedAdam | None = (
            ShardedAdam(optimizer, trained, groups.shard, schedule, all_train=self._packs)
            if optimizer
            else None
        )
        self.host = HostStore(self._memory, only_trained=lora is not None)
        self._outputs = Outputs(head, arch.vocab_size, groups, vocab_multiple=1)
        self._uses_flash = kernels.flash
        layout, size = groups.layout, arch.hidden_size
        shares = self._packs and not kernels.flash
        # Each micro-batch gathers parameters from all ranks.
        self._planner = Planner(
            layout, size, max_tokens, shares, groups.largest, True, pads=not self._packs
        )
        self.device = next(iter(shards.values())).device

    # ---------------------------------------------------------------- weights

    def _memory(self, part: Memory) -> Iterator[torch.Tensor]:
        """Yield the tensors of `part`; gradients exist only within an update, and master weights
        are the parameters."""
        if part == "parameters":
            yield from self._shards.values()
        elif part in ("trained", "frozen"):  # adapters have the names of their parameters
            wanted, names = part == "trained", self.trained_map.tensors
            yield from (t for name, t in self._shards.items() if (name in names) == wanted)
        elif part == "optimizer" and self.optimizer is not None:
            tensors = self.optimizer.state_tensors()
            yield from (t for name, t in tensors.items() if not name.startswith("main/"))

    def weights_changed(self) -> None:
        self.host.weights_loaded()

    def _primary_regions(self, rank: int) -> Sequence[Region]:
        # Of ranks with the same rows each keeps a part, as of the weights.
        return assign_writers(self.trained_map)[rank]

    def without_adapters(self) -> AbstractContextManager[None]:
        return self._adapters.disabled() if self._adapters is not None else nullcontext()

    def merged(self, sent: ShardMap) -> Mapping[str, torch.Tensor]:
        """Return the weights by local name, with adapters merged into those of `sent`; every rank
        of the layout calls it (`Adapters.merged`)."""
        assert self._adapters is not None, "it has no adapters"
        return self._adapters.merged(self.weights, sent)

    # ---------------------------------------------------------------- passes

    @contextmanager
    def _updating(self, sequences: Sequence[torch.Tensor]) -> Iterator[None]:
        del sequences
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        try:
            yield
        finally:
            self.optimizer.zero_grad()

    def _logits(self, row: PackedRow, images: Sequence[Images] | None) -> torch.Tensor:
        """Return the head's output for every token of a row, (T, vocabulary) or (T, 1).

        Args:
            row: sequences.
            images: of each sequence's prompt; None if no rank has some in this pass.

        A family's own attention and recurrent layers know no borders in a row, but reads to the
        left alone: there sequences are rows of their own, padded on the right.
        """
        if self._packs:
            packed = {"position_ids": row.positions, "use_cache": False}
            logits: torch.Tensor = self.decoder(row.tokens, **packed).logits[0]
            return logits
        rows = list(row.tokens[0].split(row.lengths))
        if images is None:
            padded = self.decoder(pad_sequence(rows, batch_first=True), use_cache=False).logits
        else:
            assert self._images is not None
            rows, images = self._images.with_blank(rows, images)
            tokens = pad_sequence(rows, batch_first=True)
            with self._images.given(tokens, images) as given:
                padded = self.decoder(tokens, use_cache=False, **given).logits
        # A blank image's row is behind the others.
        return torch.cat([part[:n] for part, n in zip(padded, row.lengths, strict=False)])

    def _images_of(self, wanted: OutputOptions) -> list[Images] | None:
        """Return the images of each sequence; None if no rank has some."""
        if self._images is None or wanted.images is None:
            return None
        images: list[Images] = [unpacked(part.cpu().numpy().tobytes()) for part in wanted.images]
        are_some, _ = self._groups.largest(int(any(count for _, count in images)), 0)
        return images if are_some else None

    def _run(
        self,
        sequences: Sequence[torch.Tensor],
        plan: Plan,
        temperature: float,
        consume: Callable[..., Any],
        wanted: OutputOptions,
        trains: bool,
    ) -> list[Any]:
        images = self._images_of(wanted)

        def use(row: PackedRow, indices: Sequence[int]) -> Any:
            of_row = [images[i] for i in indices] or [((), 0)] if images is not None else None
            tensor = self._logits(row, of_row)
            if not indices:
                if trains:  # a rank without a sequence takes part in the others' backward pass
                    (tensor.float().sum() * 0.0).backward()
                return None
            result = consume(
                indices, self._outputs.read(tensor, row, temperature, wanted.of(indices))
            )
            if not trains:
                return result
            value, sums = result
            value.backward()
            return {**sums, "loss": value.detach()}

        self.decoder.train(trains)
        results: list[Any] = []
        try:
            for indices in plan.bins:
                chosen = [sequences[i].to(self.device) for i in indices]
                # Where others have more sequences, a row of one token goes through with them.
                empty = torch.zeros(1, dtype=torch.int64, device=self.device)
                row = pack(chosen or [empty], 1, within(indices, plan.shared) if chosen else None)
                with attending(row, self._uses_flash) if self._packs else nullcontext():
                    results.append(use(row, indices))
            return results
        finally:
            # What is gathered outside layers stays for a backward pass, and would be old then.
            for module in self._modules:
                module.reshard()
