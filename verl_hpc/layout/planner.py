"""Plan the messages between ranks that turn one shard map into another.

The planner knows boxes, holders and nodes, nothing of models. Its guarantees:

- a rank receives exactly the bytes it needs and does not hold;
- a node receives each byte it lacks once from other nodes, then passes it on inside;
- a file is read once, by one of the ranks that need the bytes, and passed on like any other;
- among equals the least loaded rank sends, reads, or is first to receive;
- small bundles travel between ranks that exchange others as well, if possible: a new pair costs a
  connection and a message, and one bundle below a 64th of the largest unbalances nothing.

Every rank computes the same plan. Fragments with the same holders on both sides travel as one
`Bundle`, so the work grows with the number of distinct shards times the ranks that lack them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from verl_hpc.errors import LayoutError
from verl_hpc.layout.fragments import Fragment, fragments
from verl_hpc.layout.shard_map import Holder, ShardMap

DEFAULT_BUCKET_BYTES = 32 * 2**20
DEFAULT_ROUNDS = 2
"""Rounds whose messages are in flight at a time."""
HOST_BUCKET_BYTES = 8 * 2**20
HOST_ROUNDS = 8
"""Rounds in flight between host memories, where messages are smaller and more of them overlap: many
cores copy them, and what arrived may still be in a cache when it is summed."""
HOST_PIECE_BYTES = 256 * 2**10
"""Bytes of host memory that are copied and summed together: less than a core's second-level
cache."""
_SMALL = 64
"""A bundle below one part in so many of the largest one is small."""


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Fragments that the same holders have and the same ranks need."""

    fragments: tuple[Fragment, ...]
    sources: tuple[Holder, ...]
    targets: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One bundle from one holder to one rank.

    A relay reads what it sends from its target memory, where an earlier hop (or a read) put it.
    """

    source: Holder
    target: int
    bundle: Bundle
    relay: bool = False


@dataclass(frozen=True)
class Plan:
    """All routes of a transfer: reads from files, then the hops of the network, in order."""

    bundles: Sequence[Bundle] = field(repr=False)
    reads: Sequence[Route] = field(repr=False)
    hops: Sequence[Sequence[Route]] = field(repr=False)
    bucket_bytes: int = DEFAULT_BUCKET_BYTES

    @cached_property
    def received_bytes(self) -> Mapping[int, int]:
        """Bytes each rank receives from other ranks; ranks that receive nothing are absent."""
        total: dict[int, int] = defaultdict(int)
        for hop in self.hops:
            for route in hop:
                total[route.target] += route.bundle.num_bytes
        return total

    def inbound_bytes(self, node_of: Sequence[int]) -> Mapping[int, int]:
        """Bytes that enter each node from other nodes."""
        total: dict[int, int] = defaultdict(int)
        for hop in self.hops:
            for route in hop:
                if node_of[int(route.source)] != node_of[route.target]:
                    total[node_of[route.target]] += route.bundle.num_bytes
        return total


def plan_transfer(
    source: ShardMap,
    target: ShardMap,
    node_of: Sequence[int],
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> Plan:
    """Plan the transfer that fills every target region from the source.

    Training tp=2, dp=2 to rollout tp=1 on 4 ranks, all on one node::

        shard 0: held by 0, 2, needed by 0..3:  copies on 0, 2;  0 -> 1,  2 -> 3
        shard 1: held by 1, 3, needed by 0..3:  copies on 1, 3;  1 -> 0,  3 -> 2

    Args:
        source: who holds what: ranks, or files.
        target: what each rank needs; holders are ranks.
        node_of: node index of each rank.
        bucket_bytes: no fragment, hence no message, is larger.

    Raises:
        LayoutError: the source does not cover the target, or the bucket is below 4 KiB.
    """
    if bucket_bytes < 4096:
        raise LayoutError(f"bucket_bytes = {bucket_bytes}: at least 4096")
    whole = _bundles(source, target, bucket_bytes)
    router = _Router(node_of, max((b.num_bytes for b in whole), default=0) // _SMALL)
    bundles = [part for b in whole for part in router.split(b)]
    bundles.sort(key=lambda b: -b.num_bytes)
    for bundle in bundles:
        router.route(bundle)
    hops = router.hops
    while hops and not hops[-1]:
        hops.pop()
    return Plan(bundles, router.reads, hops, bucket_bytes)


def _bundles(source: ShardMap, target: ShardMap, max_bytes: int) -> list[Bundle]:
    grouped: dict[tuple[int, int], list[Fragment]] = defaultdict(list)
    for fragment in fragments(source, target, max_bytes):
        grouped[id(fragment.source.holders), id(fragment.target.holders)].append(fragment)
    return [_bundle(members) for members in grouped.values()]


def _bundle(members: Sequence[Fragment]) -> Bundle:
    targets = members[0].target.holders
    return Bundle(
        tuple(members),
        members[0].source.holders,
        tuple(int(t) for t in targets),
        sum(f.num_bytes for f in members),
    )


class _Router:
    """Chooses sources while it keeps count of what each rank sends, reads and brings in."""

    def __init__(self, node_of: Sequence[int], small_bytes: int) -> None:
        self.node_of = node_of
        self.small_bytes = small_bytes
        self.reads: list[Route] = []
        self.hops: list[list[Route]] = [[], []]
        self._sent: dict[int, int] = defaultdict(int)
        self._read: dict[int, int] = defaultdict(int)
        self._brought: dict[int, int] = defaultdict(int)
        self._into: list[dict[int, set[int]]] = [defaultdict(set), defaultdict(set)]
        """For each hop, the ranks that send to a rank."""

    def split(self, bundle: Bundle) -> Iterator[Bundle]:
        """Cut a bundle where several ranks can share the work of reading or bringing it in."""
        if isinstance(bundle.sources[0], str):
            parts = len(bundle.targets)
        elif self._is_small(bundle):
            parts = 1
        else:
            lacking = self._by_node(set(bundle.targets).difference(bundle.sources))
            near = {self.node_of[int(s)] for s in bundle.sources}
            parts = max((len(r) for n, r in lacking.items() if n not in near), default=1)
        parts = min(parts, len(bundle.fragments))
        if parts <= 1:
            yield bundle
            return
        # Close a part as soon as it has its share of the bytes.
        share = bundle.num_bytes / parts
        members: list[Fragment] = []
        filled = 0
        for i, fragment in enumerate(bundle.fragments, 1):
            members.append(fragment)
            filled += fragment.num_bytes
            parts_made = filled >= share
            if parts_made or i == len(bundle.fragments):
                yield _bundle(members)
                members, filled = [], 0

    def route(self, bundle: Bundle) -> None:
        if isinstance(bundle.sources[0], str):
            reader = min(bundle.targets, key=self._read.__getitem__)
            self._read[reader] += bundle.num_bytes
            self.reads.append(Route(bundle.sources[0], reader, bundle))
            self._spread(bundle, [reader], from_target=True)
        else:
            self._spread(bundle, [int(s) for s in bundle.sources], from_target=False)

    def _spread(self, bundle: Bundle, sources: list[int], from_target: bool) -> None:
        near = self._by_node(sources)
        lacking = self._by_node(sorted(set(bundle.targets).difference(sources)))
        for node, receivers in lacking.items():
            if node in near:
                for receiver in receivers:
                    self._send(0, near[node], receiver, bundle, from_target)
                continue
            first = self._first(receivers, sources, bundle)
            self._brought[first] += bundle.num_bytes
            self._send(0, sources, first, bundle, from_target)
            # Inside the node, the first receiver relays to the others in the second hop.
            for receiver in receivers:
                if receiver != first:
                    self._send(1, [first], receiver, bundle, True)

    def _send(self, hop: int, sources: list[int], target: int, bundle: Bundle, relay: bool) -> None:
        known = self._into[hop][target].intersection(sources) if self._is_small(bundle) else ()
        source = min(sorted(known) or sources, key=self._sent.__getitem__)
        self._sent[source] += bundle.num_bytes
        self._into[hop][target].add(source)
        self.hops[hop].append(Route(source, target, bundle, relay))

    def _first(self, receivers: list[int], sources: list[int], bundle: Bundle) -> int:
        """The rank of a node that brings a bundle in: of a small one preferably a rank to which a
        source already sends, and among these the one that relays to most of the others already."""
        if not self._is_small(bundle):
            return min(receivers, key=self._brought.__getitem__)
        known = [r for r in receivers if not self._into[0][r].isdisjoint(sources)]

        def cost(rank: int) -> tuple[int, int]:
            return -sum(rank in self._into[1][r] for r in receivers), self._brought[rank]

        return min(known or receivers, key=cost)

    def _is_small(self, bundle: Bundle) -> bool:
        return bundle.num_bytes < self.small_bytes

    def _by_node(self, ranks: set[int] | Sequence[int]) -> dict[int, list[int]]:
        grouped: dict[int, list[int]] = {}
        for rank in ranks:
            grouped.setdefault(self.node_of[rank], []).append(rank)
        return grouped
