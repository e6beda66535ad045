"""Megatron-core's memory to vLLM's on one device, against copying as many bytes in one piece.

Both sides are bare memory, laid out as the engines lay it out; neither is built.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks.gpu.setting import ONE_RANK, Figure, Setting, architecture, fill_randomly, window_of
from verl_hpc.layout.megatron import megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.transfer.checksum import checksum, position_weighted_sum
from verl_hpc.transfer.execute import Transfer

if TYPE_CHECKING:
    import torch


def run(setting: Setting) -> list[Figure]:
    """Bandwidth of the transfer and of its checksum; first the proof that it is right."""
    import torch

    arch = architecture(setting.shapes.model)
    dtype: torch.dtype = getattr(torch, setting.shapes.dtype)
    source = megatron_shard_map(arch, ONE_RANK, dtype=setting.shapes.dtype)
    target = vllm_shard_map(arch, ((0,),), setting.shapes.dtype)
    held, wanted = (_memory(m, dtype, setting.device) for m in (source, target))
    fill_randomly(source, held)
    transfer = Transfer(plan_transfer(source, target, (0,)), 0)
    transfer.run(held, wanted, dtype)
    wrong = sum(_different(source, held, target, wanted, name) for name in target.tensors)
    size = target.num_bytes
    moving = setting.seconds_per_call(lambda: transfer.run(held, wanted, dtype))
    piece = torch.empty(size, dtype=torch.uint8, device=setting.device)
    other = torch.empty_like(piece)
    copying = setting.seconds_per_call(lambda: other.copy_(piece))
    summing = setting.seconds_per_call(lambda: [checksum(t) for t in wanted.values()])
    return [
        Figure("tensors that arrived wrong", wrong, at_most=0),
        Figure("bytes", size / 1e9, "GB"),
        Figure("fragments", len(transfer.moves.copies)),
        Figure("transfer", size / moving / 1e9, "GB/s"),
        Figure("copy in one piece", size / copying / 1e9, "GB/s"),
        Figure("transfer, of the copy's speed", 100 * copying / moving, "%"),
        Figure("checksums", size / summing / 1e9, "GB/s"),
        Figure("checksums that differ from the CPU's", _strange_sums(wanted), at_most=0),
    ]


def _memory(
    shard_map: ShardMap, dtype: torch.dtype, device: torch.device
) -> dict[str, torch.Tensor]:
    import torch

    sizes: dict[str, int] = defaultdict(int)
    for region in shard_map.held_by(0):
        sizes[region.view.name] += region.box.num_elements
    return {name: torch.zeros(n, dtype=dtype, device=device) for name, n in sizes.items()}


def _different(
    source: ShardMap,
    held: Mapping[str, torch.Tensor],
    target: ShardMap,
    wanted: Mapping[str, torch.Tensor],
    name: str,
) -> int:
    """1 if a logical tensor is not the same on both sides."""
    return int(not _whole(source, held, name).equal(_whole(target, wanted, name)))


def _whole(shard_map: ShardMap, memory: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    some = next(iter(memory.values()))
    whole = some.new_zeros(shard_map.tensors[name].shape)
    for region in shard_map.by_tensor[name]:
        whole[region.box.slices] = window_of(memory, region)
    return whole


def _strange_sums(memory: Mapping[str, torch.Tensor]) -> int:
    """Tensors whose fingerprint the device and the CPU compute differently."""
    import torch

    parts = [tensor[: 1 << 20].view(torch.uint8) for tensor in memory.values()][:8]
    return sum(
        int(position_weighted_sum(part)) != int(position_weighted_sum(part.cpu())) for part in parts
    )
