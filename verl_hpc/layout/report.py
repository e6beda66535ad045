"""Cost of a resharding, counted from its plan without a single GPU."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from verl_hpc.layout.adapters import AdapterShape, adapter_shard_map, factor_map
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import Grouping, generation_groups, zero_redundancy_applies
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.link_model import Links, limit_seconds, predicted_seconds
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.messages import routes_by_pair, sizes_by_pair
from verl_hpc.layout.planner import DEFAULT_BUCKET_BYTES, Bundle, Plan, plan_transfer
from verl_hpc.layout.shard_map import ShardMap, shard_sizes
from verl_hpc.layout.vllm import vllm_shard_map


@dataclass(frozen=True)
class Spread:
    """Smallest, mean and largest of one figure over ranks or nodes, in bytes."""

    min: int
    mean: float
    max: int

    @classmethod
    def of(cls, values: Iterable[int]) -> Spread:
        numbers = list(values)
        return cls(min(numbers), sum(numbers) / len(numbers), max(numbers))


@dataclass(frozen=True)
class ReshardReport:
    """Figures of one training-to-rollout resharding; bytes unless named otherwise."""

    received_bytes_per_rank: Spread
    minimum_bytes_per_rank: Spread
    """Bytes that the rank needs and does not hold: no plan can receive less."""
    allgather_bytes_per_rank: Spread
    """Bytes received if every full tensor were gathered on every rank (as verl does today)."""
    inbound_bytes_per_node: Spread
    minimum_inbound_bytes_per_node: Spread
    """Bytes that the node's ranks need and none of them holds."""
    paper_bytes_per_rank: float | None
    """HybridFlow's Table 2, (t p - t_g p_g)/(t_g p_g t p) M; None where its grouping does not
    apply."""
    model_bytes: int
    """Bytes of all that is sent: the model, or its adapters."""
    peak_bucket_bytes: int
    """Largest message; a rank holds at most two of them per direction."""
    messages: int
    predicted_seconds: float
    """Seconds with checksums, over the links of a site: `link_model`."""
    limit_seconds: float
    """Seconds in which the network brings the fullest node its bytes, or NVLink the fullest
    rank."""
    planning_seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def reshard_report(
    arch: Architecture,
    train: TrainLayout,
    rollout_tp: int,
    gpus_per_node: int,
    grouping: Grouping | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    dtype: str | None = None,
    links: Links | None = None,
    adapters: AdapterShape | None = None,
) -> ReshardReport:
    """Plan Megatron `train` -> vLLM with `rollout_tp` on the same ranks, and count.

    Args:
        adapters: count what these take in each step, in place of the whole model.
        grouping: None takes zero redundancy where it applies.
        links: what they carry; None takes the defaults.

    Raises:
        LayoutError: sizes that do not divide.
    """
    start = time.perf_counter()
    applies = zero_redundancy_applies(train.tp, rollout_tp)
    chosen: Grouping = grouping or ("zero_redundancy" if applies else "contiguous")
    source = megatron_shard_map(arch, train, dtype=dtype)
    groups = generation_groups(train.grid, rollout_tp, chosen)
    target = vllm_shard_map(arch, groups, dtype)
    if adapters is not None:
        source = adapter_shard_map(arch, source, adapters)
        target = factor_map(target, source)
    nodes = nodes_of(train.num_ranks, gpus_per_node)
    plan = plan_transfer(source, target, nodes, bucket_bytes)
    seconds = time.perf_counter() - start
    sizes = message_census(plan)
    links = links or Links()
    # HybridFlow's Table 2 assumes its grouping; other groupings have no formula to compare with.
    model_parallel = train.tp * train.pp
    follows_paper = chosen == "zero_redundancy" and adapters is None
    return ReshardReport(
        received_bytes_per_rank=_over(range(train.num_ranks), plan.received_bytes),
        minimum_bytes_per_rank=_over(range(train.num_ranks), minimum_received(plan.bundles)),
        allgather_bytes_per_rank=_over(range(train.num_ranks), allgather_received(source)),
        inbound_bytes_per_node=_over(set(nodes), plan.inbound_bytes(nodes)),
        minimum_inbound_bytes_per_node=_over(set(nodes), minimum_inbound(plan.bundles, nodes)),
        paper_bytes_per_rank=(model_parallel - rollout_tp)
        / (rollout_tp * model_parallel)
        * source.num_bytes
        if follows_paper
        else None,
        model_bytes=source.num_bytes,
        peak_bucket_bytes=max(sizes, default=0),
        messages=sum(sizes.values()),
        predicted_seconds=predicted_seconds(plan, nodes, links),
        limit_seconds=limit_seconds(plan, nodes, links),
        planning_seconds=seconds,
    )


def _over(keys: Iterable[int], values: Mapping[int, int]) -> Spread:
    return Spread.of(values.get(key, 0) for key in keys)


def minimum_received(bundles: Sequence[Bundle]) -> dict[int, int]:
    """Bytes each rank needs and does not hold."""
    total: dict[int, int] = {}
    for bundle in bundles:
        held = set(bundle.sources)
        for rank in bundle.targets:
            if rank not in held:
                total[rank] = total.get(rank, 0) + bundle.num_bytes
    return total


def minimum_inbound(bundles: Sequence[Bundle], node_of: Sequence[int]) -> dict[int, int]:
    """Bytes each node's ranks need and none of them holds.

    Exact where target boxes are equal or disjoint, as in every layout of this package.
    """
    total: dict[int, int] = {}
    for bundle in bundles:
        held = {node_of[int(s)] for s in bundle.sources}
        for node in {node_of[t] for t in bundle.targets} - held:
            total[node] = total.get(node, 0) + bundle.num_bytes
    return total


def allgather_received(source: ShardMap) -> dict[int, int]:
    """Bytes each rank receives when every full tensor is gathered on every rank."""
    return {
        int(rank): max(source.num_bytes - held, 0) for rank, held in shard_sizes(source).items()
    }


def message_census(plan: Plan) -> Mapping[int, int]:
    """How many messages of each size in bytes the plan sends, all ranks together."""
    census: Counter[int] = Counter()
    for hop in plan.hops:
        for sizes in sizes_by_pair(routes_by_pair(hop), plan.bucket_bytes).values():
            census.update(sizes)
    return census
