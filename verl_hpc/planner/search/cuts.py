"""Layouts that one model can have on so many ranks.

Source: HybridFlow (arXiv 2409.19256), Algorithm 2: tensor parallelism within a node, pipeline
stages, and data parallelism over the rest; here also chunks of stages, and whether activations are
recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

from verl_hpc.config.model import ParallelConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import TrainLayout, check_megatron_layout
from verl_hpc.layout.pipeline import layers_per_stage
from verl_hpc.layout.vllm import check_vllm_layout

_CHUNKS = (1, 2, 4)


@dataclass(frozen=True)
class Cut:
    """A training layout, and what the backward pass recomputes."""

    layout: TrainLayout
    recompute: str

    def settings(self, base: ParallelConfig) -> dict[str, object]:
        """Settings of `parallel` that differ from their defaults, with those of `base` that a
        search leaves alone."""
        layout = self.layout
        sizes = {
            "pipeline_parallel": layout.pp,
            "virtual_pipeline": layout.vpp,
            "expert_parallel": layout.ep,
            "context_parallel": layout.cp,
        }
        settings: dict[str, object] = {}
        if layout.tp > 1:
            settings |= {"tensor_parallel": layout.tp, "sequence_parallel": True}
        settings |= {name: size for name, size in sizes.items() if size > 1}
        if self.recompute != "none":
            settings["recompute"] = self.recompute
            if self.recompute == base.recompute == "selective" and base.recompute_modules:
                settings["recompute_modules"] = list(base.recompute_modules)
        return settings

    def parallel(self, base: ParallelConfig) -> ParallelConfig:
        """The section with `settings`."""
        return ParallelConfig.model_validate(self.settings(base))


def cuts_of(
    arch: Architecture,
    num_ranks: int,
    ranks_per_node: int,
    recompute: str,
    trains: bool,
    context_parallel: int = 1,
) -> list[Cut]:
    """List the layouts of a model on `num_ranks` ranks.

    Args:
        arch: the model.
        num_ranks: of its set.
        ranks_per_node: tensor parallelism stays within a node.
        recompute: what the configuration says; `full` is tried as well where it trains.
        trains: whether it has a backward pass.
        context_parallel: what the configuration says.
    """
    ways = dict.fromkeys([recompute, "full"]) if trains else ["none"]
    layouts = list(_layouts(arch, num_ranks, ranks_per_node, context_parallel))
    return [Cut(layout, way) for layout in layouts for way in ways]


def _layouts(
    arch: Architecture, num_ranks: int, ranks_per_node: int, cp: int
) -> Iterator[TrainLayout]:
    experts = divisors(max(arch.num_experts, 1))
    for tp in divisors(min(ranks_per_node, num_ranks)):
        if ranks_per_node % tp or num_ranks % tp:
            continue
        if not _allows(check_megatron_layout, arch, TrainLayout(tp=tp)):
            continue
        for pp in divisors(num_ranks // tp):
            if pp > arch.num_layers:
                break
            dp = num_ranks // (tp * pp)
            if dp % cp:
                continue
            for vpp in _CHUNKS if pp > 1 else (1,):
                if _has_stages(arch.num_layers, pp, vpp):
                    for ep in (n for n in experts if tp * dp % n == 0):
                        yield TrainLayout(tp=tp, pp=pp, dp=dp, vpp=vpp, ep=ep, cp=cp)


def rollout_sizes(
    arch: Architecture, num_ranks: int, ranks_per_node: int, rollout: RolloutConfig
) -> list[int]:
    """Tensor-parallel sizes of engines on `num_ranks` ranks: Algorithm 2 enlarges them until
    weights and cache fit."""
    pp, of_experts = rollout.pipeline_parallel, rollout.expert_parallel
    return [
        tp
        for tp in divisors(min(ranks_per_node, num_ranks))
        if ranks_per_node % tp == 0 and num_ranks % (tp * pp) == 0
        if tp > 1 or not of_experts
        if _allows(check_vllm_layout, arch, tp, of_experts)
    ]


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors, ascending."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(dict.fromkeys([*small, *(number // n for n in reversed(small))]))


def _allows(check: Callable[..., object], *sizes: object) -> bool:
    """Whether a check of a layout raises no error."""
    try:
        check(*sizes)
    except LayoutError:
        return False
    return True


@lru_cache(maxsize=4096)
def _has_stages(num_layers: int, pp: int, vpp: int) -> bool:
    if not _allows(layers_per_stage, num_layers, pp, vpp):
        return False
    return all(count for row in layers_per_stage(num_layers, pp, vpp) for count in row)
