"""Costs of work, as amounts of terms; one factor per term converts them to seconds.

A cost is linear in the factors, so that these can be fitted to a run by least squares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import exp
from typing import Any

from verl_hpc.hardware.node import GpuKind
from verl_hpc.layout.architecture import Architecture

Term = str
"""Name of a factor of `Efficiency`."""
Cost = Mapping[Term, float]
"""Seconds at the peak of products, memory and links, and numbers of what takes a fixed time."""

FRACTIONS: tuple[Term, ...] = (
    "training",
    "inference",
    "experts",
    "prefill",
    "memory",
    "collective",
    "pcie",
)
"""Terms in seconds at a peak, whose factor is the fraction of it that is reached."""


_NINE_OF_TEN = 1.645
"""Standard deviations on either side that hold nine of ten cases."""


@dataclass(frozen=True)
class Basis:
    """What factors rest on, and how far off they were there."""

    text: str
    """Source of the factors, as the end of a sentence."""
    spread: float | None = None
    """Standard deviation of the logarithm of predicted by measured seconds; None is unknown."""
    stale_spread: float | None = None
    """Standard deviation of steps with `rollout.staleness`; None if that is `spread` too."""
    latent: Basis | None = None
    """Basis of models with latent attention; None if it is this one."""

    def of_run(self, staleness: int, archs: Iterable[Architecture]) -> Basis:
        """Basis of runs with this `rollout.staleness` and these models."""
        if self.latent is not None and any(arch.latent for arch in archs):
            return self.latent
        spread = self.stale_spread if staleness else None
        return self if spread is None else replace(self, spread=spread)

    def band(self, seconds: float) -> tuple[float, float] | None:
        """Seconds between which nine of ten cases are, of which this is predicted; None where the
        spread is unknown."""
        if self.spread is None:
            return None
        factor = exp(_NINE_OF_TEN * self.spread)
        return seconds / factor, seconds * factor

    @property
    def sentence(self) -> str:
        """What the factors rest on, in a sentence."""
        ends = self.band(1.0)
        near = (
            "how far off they are is not known"
            if ends is None
            else f"nine of ten such steps take {ends[0]:.2f} to {ends[1]:.2f} times as long"
        )
        return f"Seconds are by factors {self.text}; {near}."


LATENT = Basis(
    "fitted to 25 published steps (NeMo-RL on H100 and GB200), none of them with latent attention: "
    "all 12 of DeepSeek-V3 took 1.6 to 2.4 times as long",
    0.689,
)
"""Basis of the default factors for models with latent attention, by 12 steps in
benchmarks/published, which the factors were not fitted to."""
PUBLISHED = Basis("fitted to 25 published steps (NeMo-RL on H100 and GB200)", 0.124, 0.229, LATENT)
"""Basis of the default factors. The spreads are those of 22 steps on policy and of 18 with
staleness in benchmarks/published; 5 and 10 of them were not fitted to."""


@dataclass(frozen=True)
class Efficiency:
    """How near to its peaks a machine comes, and what its host takes: a factor for each term.

    The defaults are of GPUs. `python -m benchmarks.published --fit` has fitted training, inference,
    layers, experts, expert_layers and decode_steps to published steps; `plan calibrate` fits to
    runs.
    """

    basis: Basis = PUBLISHED
    training: float = 0.4
    """Fraction of peak FLOPs in forward and backward passes, without collectives and bubbles.
    Megatron-LM reaches 44 to 52 % of an A100's peak with both (arXiv 2104.04473, table 1), Llama 3
    38 to 43 % of an H100's (arXiv 2407.21783, table 4)."""
    inference: float = 0.4
    """Fraction of peak FLOPs in forward passes alone."""
    experts: float = 0.0572
    """Fraction of peak FLOPs in the grouped products of experts, in forward and backward passes."""
    prefill: float = 0.5
    """Fraction of peak FLOPs in a rollout engine that reads prompts, or decodes so many sequences
    at a time that computing takes longer than reading the weights."""
    memory: float = 0.7
    """Fraction of the device memory's bandwidth in kernels that read weights, caches or optimizer
    state once (FlashDecoding and Adam kernels reach 70 to 85 %)."""
    collective: float = 0.75
    """Fraction of a link's bandwidth in large collectives: nccl-tests reach 230 of an A100's 300
    GB/s and 360 of an H100's 450 GB/s in a node."""
    pcie: float = 0.45
    """Fraction of the bandwidth to host memory with all devices of a node at once, which share
    it."""
    hops: float = 2.5e-6
    """Seconds that a collective's step between two GPUs of a node takes however small it is; a step
    over the network counts as four (small all-reduces of 8 GPUs take 15 us in a node)."""
    elementwise: float = 0.0
    """Seconds of what each tensor-parallel rank does for itself (norms, residual sums, packing of
    products' inputs), as a multiple of the time that the bytes of norms and sums take at the
    bandwidth of the device memory. 0: included in `training` and `inference`, as in published
    fractions."""
    layers: float = 801e-6
    """Seconds of one layer's passage, forward or backward, without its products: launches of small
    kernels, norms and activations."""
    expert_layers: float = 4.02e-3
    """Seconds that a mixture of experts adds to one layer's passage, forward or backward: routing,
    sorting of tokens, launches of many small products."""
    launches: float = 13.5e-6
    """Seconds in which the host dispatches one operation, with its share of Python and of views:
    torch.nn.Linear, which is one, takes 13.48 us of an H100 DGX's host, and 33 to 37 us of Grace
    (github.com/NVIDIA/TransformerEngine, issue 2053)."""
    sequences: float = 100e-6
    """Seconds of host work on one sequence in a pass: packing, columns, losses."""
    operators: float = 20e-3
    """Seconds of an operator that computes with no model, and of the agreement before any
    operator."""
    decode_hops: float = 2.5e-6
    """Like `hops`, for sums in a rollout engine, which has its own kernels for them."""
    decode_layers: float = 12e-6
    """Seconds of one layer's passage in a decoding step without memory reads: gaps between small
    kernels of a CUDA graph."""
    decode_steps: float = 6.79e-3
    """Seconds of host work in a decoding step: scheduling, sampling, outputs."""
    decode_sequences: float = 15e-6
    """Seconds of host work on one sequence in a decoding step."""
    scores: float = 1e-3
    """Seconds by which one call of a reward function delays a rank; most are made while others
    generate."""
    switches: float = 1.0
    """Seconds in which a rollout engine gives up the device and takes it back; on CPU ranks,
    seconds of host work while it gets new weights."""

    def seconds(self, cost: Cost) -> float:
        """Seconds that a cost takes."""
        return sum(amount * self.of(term) for term, amount in cost.items())

    def of(self, term: Term) -> float:
        """Seconds of one unit of a term."""
        factor: float = getattr(self, term)
        return 1.0 / factor if term in FRACTIONS else factor


CPU_RANKS = Efficiency(
    Basis("that are round figures of CPU ranks"),
    training=0.6,
    inference=0.65,
    experts=0.6,
    prefill=0.5,
    memory=0.75,
    collective=0.2,
    hops=160e-6,
    elementwise=2.0,
    layers=2e-3,
    expert_layers=0.0,
    launches=0.0,
    sequences=100e-6,
    operators=4e-3,
    decode_hops=300e-6,
    decode_layers=1.1e-3,
    decode_steps=1.6e-3,
    decode_sequences=50e-6,
    scores=100e-6,
    switches=8e-3,
)
"""Factors of CPU ranks, in CPU seconds: four ranks with a thread each on two cores. Products and
collectives were timed alone (Gloo's all-reduces of 2 and 4 ranks: 130 to 190 us a step of the ring,
1.9 GB/s), the others are round figures between those of SFT, GRPO and PPO on small decoders."""


def with_factors(efficiency: Efficiency, factors: Mapping[Term, float]) -> Efficiency:
    """Change factors, with the same basis."""
    changes: dict[str, Any] = dict(factors)
    return replace(efficiency, **changes)


def defaults(kind: GpuKind | None) -> Efficiency:
    """Factors to use where none were fitted.

    Args:
        kind: what they are for; None is a GPU.
    """
    return Efficiency() if kind is None or kind.is_gpu else CPU_RANKS


TERMS: tuple[Term, ...] = tuple(field.name for field in fields(Efficiency) if field.name != "basis")

MEANINGS: Mapping[Term, str] = {
    "training": "FLOPs of matrix products in training passes / (peak x fraction)",
    "inference": "FLOPs of matrix products in forward passes / (peak x fraction)",
    "experts": "FLOPs of products of experts in passes / (peak x fraction)",
    "prefill": "FLOPs of prompts, and of decoding where they outweigh reading weights",
    "memory": "bytes read once / (device memory bandwidth x fraction)",
    "collective": "bytes over the slowest link of a ring / (bandwidth x fraction)",
    "pcie": "bytes to and from host memory / (bandwidth x fraction)",
    "hops": "steps of collectives: 2 log2(ranks), on CPUs 2 (ranks - 1); over the network x 4",
    "elementwise": "bytes that norms, residual sums and losses read and write / bandwidth x factor",
    "layers": "passages of a micro-batch through a layer",
    "expert_layers": "the same, of layers that are mixtures of experts",
    "launches": "operations dispatched in passes that the host bounds",
    "sequences": "sequences of a pass, host work",
    "operators": "operators, host work",
    "decode_hops": "the same, in rollout engines",
    "decode_layers": "passages of a decoding step through a layer",
    "decode_steps": "decoding steps, host work",
    "decode_sequences": "sequences x decoding steps, host work",
    "scores": "calls of the reward function",
    "switches": "times that an engine leaves the device and comes back; on CPUs, gets weights",
}
"""Quantity that each term counts."""

TOLD_BY: Mapping[Term, str] = {
    "training": "another batch.max_tokens_per_micro_batch",
    "inference": "another batch.max_tokens_per_micro_batch",
    "experts": "another batch.max_tokens_per_micro_batch",
    "prefill": "another rollout.num_samples",
    "memory": "another batch.mini_batches",
    "collective": "another tensor_parallel",
    "pcie": "another offload",
    "hops": "another tensor_parallel",
    "elementwise": "another tensor_parallel",
    "layers": "another batch.max_tokens_per_micro_batch",
    "expert_layers": "another batch.max_tokens_per_micro_batch",
    "launches": "a much smaller batch.max_tokens_per_micro_batch",
    "sequences": "another batch.size",
    "operators": "another batch.size",
    "decode_hops": "another rollout.tensor_parallel",
    "decode_layers": "a model with another number of layers",
    "decode_steps": "a model with another number of layers",
    "decode_sequences": "another rollout.tensor_parallel",
    "scores": "another rollout.num_samples",
    "switches": "another offload, on CPU ranks another pipeline_parallel",
}
"""The setting in which runs must differ to separate a term from the others."""


def together(costs: Iterable[Cost]) -> Cost:
    """Sum of costs."""
    total: dict[Term, float] = {}
    for cost in costs:
        for term, amount in cost.items():
            total[term] = total.get(term, 0.0) + amount
    return total


def times(number: float, cost: Cost) -> Cost:
    """Multiply a cost by `number`."""
    return {term: number * amount for term, amount in cost.items()}
