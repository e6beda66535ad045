"""Generation by engines of tensor-parallel ranks.

A decoding step of b sequences reads the engine's weights once and the cache of each sequence, does
2 FLOPs a parameter and sequence, and has two all-reduces a layer. As many sequences are under way
as the cache holds; the others wait, and at the end the longest are left alone. An operator ends
with the last engine, so that what every step takes is paid until the longest response of all. With
responses of several steps under way (rollout.staleness above 1) an engine stays full instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import cache_bytes_per_token
from verl_hpc.layout.shard_map import ITEM_BYTES
from verl_hpc.planner.timing.cost import Cost, times, together
from verl_hpc.planner.timing.lengths import any_alive, survival
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.work import forward_flops, layer_work
from verl_hpc.planner.timing.workload import Workload

LEAST_SEQUENCES, MOST_SEQUENCES = 256, 1024
"""Bounds on the sequences that an engine decodes at a time, if rollout.max_num_seqs is null;
between them the cache decides."""
_CHUNK = 8192
"""Tokens of a step that reads prompts."""


@dataclass(frozen=True)
class Engines:
    """Rollout engines of one model."""

    arch: Architecture
    num_ranks: int
    tp: int
    pp: int = 1
    dtype: str = "bfloat16"
    cache_bytes: float | None = None
    """Memory of a rank for keys and values; None holds all sequences."""
    max_sequences: int | None = None
    """Most sequences that one engine decodes at a time; None is the default of
    rollout.max_num_seqs: null."""
    weight_bytes_each: float | None = None
    """Mean bytes of a weight; None follows from dtype."""
    cache_bytes_each: int | None = None
    """Bytes of an element of a key or a value; None follows from dtype."""

    @property
    def count(self) -> int:
        return self.num_ranks // (self.tp * self.pp)

    @property
    def cache_bytes_per_token(self) -> int:
        """Cache bytes of a token on one rank."""
        size = self.cache_bytes_each or ITEM_BYTES[self.dtype]
        return cache_bytes_per_token(self.arch, self.tp, self.pp, size)

    @property
    def weight_bytes(self) -> float:
        """Weight bytes of one rank."""
        return self.arch.num_parameters * self.weight_size / (self.tp * self.pp)

    @property
    def weight_size(self) -> float:
        """Mean bytes of a weight."""
        return self.weight_bytes_each or ITEM_BYTES[self.dtype]


def at_a_time(engines: Engines, work: Workload) -> float:
    """Sequences that one engine decodes at a time at most; below 1 where not one fits."""
    limit: float = engines.max_sequences or MOST_SEQUENCES
    if engines.cache_bytes is None:
        return limit
    capacity = engines.cache_bytes / engines.cache_bytes_per_token
    if capacity < work.prompt + work.responses.longest:
        return capacity / (work.prompt + work.responses.longest)
    holds = capacity / (work.prompt + work.responses.mean / 2)
    if engines.max_sequences is None:
        # By default an engine admits LEAST_SEQUENCES or more; those beyond its cache are preempted.
        limit = min(max(holds, LEAST_SEQUENCES), MOST_SEQUENCES)
    return max(min(holds, limit), 1.0)


def generate_cost(machine: Machine, engines: Engines, work: Workload) -> Cost:
    """Cost of generating all responses of a step."""
    # A pipeline has one batch in flight per stage: model each as an engine of all layers.
    num_engines = engines.count * engines.pp
    mine = float(ceil(work.sequences / num_engines))
    width = max(at_a_time(engines, work) / engines.pp, 1.0)
    decode = _Decode(machine, engines)
    costs = [_prompts(machine, engines, work, mine)]
    if work.in_flight > 1:
        return together([*costs, _in_flight(decode, work, mine, width)])
    if mine > width:
        steps = (mine - width) / width * work.responses.mean
        context = work.prompt + work.responses.mean / 2
        costs.append(times(steps, decode.step(width, context)))
    last = min(mine, width)
    for middle, tokens, share in survival(work.responses):
        alive = last * share
        runs = tokens * any_alive(share, work.sequences)
        if runs > 0:
            # Average over the steps in which some engine still decodes.
            step = decode.step(alive * tokens / runs, work.prompt + middle)
            costs.append(times(runs, step))
    return together(costs)


def _in_flight(decode: _Decode, work: Workload, mine: float, width: float) -> Cost:
    """Cost of decoding as many responses as a step has, with those of several steps under way.

    The longest of all has `work.in_flight` steps to end in, so that each step has that part of its
    decoding steps, and an engine is as full as that makes it.
    """
    responses = work.responses
    longest = sum(n * any_alive(share, work.sequences) for _, n, share in survival(responses))
    steps = max(longest / work.in_flight, mine * responses.mean / width)
    # Long responses are under way for longer: a token that is decoded has this mean place.
    place = responses.mean_square / responses.mean / 2
    return times(steps, decode.step(mine * responses.mean / steps, work.prompt + place))


def _prompts(machine: Machine, engines: Engines, work: Workload, sequences: float) -> Cost:
    """Cost of reading the prompts; samples of a prompt share its cache where they share an
    engine."""
    prompts = ceil(sequences / work.samples)
    tokens = prompts * work.prompt
    # Logits of a prompt's last token only.
    flops = forward_flops(engines.arch, tokens, prompts * work.prompt**2, with_logits=False)
    chunks = ceil(tokens / _CHUNK)
    read = chunks * engines.weight_bytes * engines.pp
    size = ITEM_BYTES[engines.dtype]
    activations = tokens * engines.arch.hidden_size * size
    sums = machine.fabric.sum_in_engine(activations, engines.tp)
    layers = engines.arch.num_layers
    return together(
        [
            machine.products("prefill", flops / engines.tp, read, engines.dtype),
            times(
                2 * layers, {t: a / (chunks if t == "decode_hops" else 1) for t, a in sums.items()}
            ),
            {"decode_layers": float(chunks * layers), "decode_steps": float(chunks)},
        ]
    )


class _Decode:
    """Decoding steps of one engine with all its pipeline stages."""

    def __init__(self, machine: Machine, engines: Engines) -> None:
        self._machine, self._engines = machine, engines
        arch, layer = engines.arch, layer_work(engines.arch)
        self._size = ITEM_BYTES[engines.dtype]
        logits = 2.0 * arch.hidden_size * arch.vocab_size
        self._flops = (arch.num_layers * layer.flops_per_token + logits) / engines.tp
        experts = arch.num_layers * layer.expert_parameters
        dense = arch.num_parameters - experts
        if not arch.tied_embeddings:
            dense -= arch.vocab_size * arch.hidden_size  # a step looks few rows up
        self._dense = dense * engines.weight_size / engines.tp
        self._experts = experts * engines.weight_size / engines.tp
        self._cache = engines.cache_bytes_per_token * engines.pp

    def step(self, sequences: float, context: float) -> Cost:
        """Cost of a step with this many sequences of this mean context."""
        arch, engines, machine = self._engines.arch, self._engines, self._machine
        read = self._dense + self._experts * self._touched(sequences)
        sums = machine.fabric.sum_in_engine(sequences * arch.hidden_size * self._size, engines.tp)
        return together(
            [
                machine.products("prefill", self._flops * sequences, read, engines.dtype),
                machine.memory(self._cache * sequences * context),
                times(2 * arch.num_layers, sums),
                {
                    "decode_layers": float(arch.num_layers),
                    "decode_steps": 1.0,
                    "decode_sequences": sequences,
                },
            ]
        )

    def _touched(self, sequences: float) -> float:
        """Expected share of the experts that at least one sequence uses, all being equally
        likely."""
        arch = self._engines.arch
        if not arch.num_experts:
            return 0.0
        return any_alive(arch.experts_per_token / arch.num_experts, sequences)
