"""Collectives on shares of different sizes between CPU ranks; gloo's need equal sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def all_gather(
    outputs: Sequence[torch.Tensor], mine: torch.Tensor, group: dist.ProcessGroup
) -> None:
    """`torch.distributed.all_gather`: every rank's share, in the order of the ranks."""
    outputs[group.rank()].copy_(mine)
    for rank, share in enumerate(outputs):
        if share.numel():
            dist.broadcast(share, group_src=rank, group=group)


def reduce_scatter(
    output: torch.Tensor, inputs: Sequence[torch.Tensor], group: dist.ProcessGroup
) -> None:
    """`torch.distributed.reduce_scatter`: the sum of this rank's share of all ranks' inputs."""
    whole = torch.cat(list(inputs))
    dist.all_reduce(whole, group=group)
    output.copy_(whole.split([len(share) for share in inputs])[group.rank()])
