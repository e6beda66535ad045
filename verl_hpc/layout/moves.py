"""One rank's part of a plan: what it copies, reads, sends and receives, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.layout.box import Box, View
from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.planner import Bundle, Plan, Route


@dataclass(frozen=True, slots=True)
class Copy:
    """A fragment the rank holds already: from its source memory into its target memory."""

    fragment: Fragment
    source: View
    targets: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """A fragment to read from a file: `box` of `dataset`, counted from the dataset's start."""

    fragment: Fragment
    file: str
    dataset: str
    box: Box
    targets: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """A fragment to send, from target memory if it is relayed."""

    fragment: Fragment
    view: View
    relay: bool


@dataclass(frozen=True, slots=True)
class Receive:
    """A fragment to receive into every place of the target memory that needs it."""

    fragment: Fragment
    targets: tuple[View, ...]


@dataclass(frozen=True)
class Hop:
    """Messages of one hop by peer; a message holds at most a bucket of bytes.

    The fragments of the n-th message to a peer are those of its n-th message from this rank.
    """

    sends: Mapping[int, Sequence[Sequence[Send]]]
    receives: Mapping[int, Sequence[Sequence[Receive]]]


@dataclass(frozen=True)
class RankMoves:
    """Everything one rank does in a transfer."""

    rank: int
    copies: Sequence[Copy]
    reads: Sequence[Read]
    hops: Sequence[Hop]


def moves_of(plan: Plan, rank: int) -> RankMoves:
    """The part of `rank` in a plan. Costs one pass over the plan's routes."""
    return RankMoves(
        rank,
        [
            Copy(f, f.source.views(rank, f.box)[0], f.target.views(rank, f.box))
            for bundle in plan.bundles
            if rank in bundle.targets and rank in bundle.sources
            for f in bundle.fragments
        ],
        [read for route in plan.reads if route.target == rank for read in _reads(route)],
        [_hop(hop, rank, plan.bucket_bytes) for hop in plan.hops],
    )


def _reads(route: Route) -> Iterator[Read]:
    for f in route.bundle.fragments:
        region = f.source.regions[0]
        targets = f.target.views(route.target, f.box)
        yield Read(f, str(route.source), region.view.name, f.box.relative_to(region.box), targets)


def _hop(routes: Sequence[Route], rank: int, bucket_bytes: int) -> Hop:
    sends: dict[int, list[Route]] = {}
    receives: dict[int, list[Route]] = {}
    for route in routes:
        if route.source == rank:
            sends.setdefault(route.target, []).append(route)
        if route.target == rank:
            receives.setdefault(int(route.source), []).append(route)
    return Hop(
        {
            peer: [[_send(*item) for item in message] for message in messages(r, bucket_bytes)]
            for peer, r in sends.items()
        },
        {
            peer: [[_receive(*item) for item in message] for message in messages(r, bucket_bytes)]
            for peer, r in receives.items()
        },
    )


def _send(fragment: Fragment, route: Route) -> Send:
    piece = fragment.target if route.relay else fragment.source
    return Send(fragment, piece.views(route.source, fragment.box)[0], route.relay)


def _receive(fragment: Fragment, route: Route) -> Receive:
    return Receive(fragment, fragment.target.views(route.target, fragment.box))


def messages(routes: Sequence[Route], bucket_bytes: int) -> Iterator[list[tuple[Fragment, Route]]]:
    """Cut the fragments that travel between one pair of ranks into messages.

    Wider elements come first within a message, so that each stays aligned.
    """
    message: list[tuple[Fragment, Route]] = []
    filled = 0
    for route in routes:
        for fragment in route.bundle.fragments:
            if message and filled + fragment.num_bytes > bucket_bytes:
                yield sorted(message, key=_narrowness)
                message, filled = [], 0
            message.append((fragment, route))
            filled += fragment.num_bytes
    if message:
        yield sorted(message, key=_narrowness)


def _narrowness(item: tuple[Fragment, Route]) -> int:
    return -(item[0].num_bytes // item[0].box.num_elements)


def message_sizes(bundles: Sequence[Bundle], bucket_bytes: int) -> list[int]:
    """Bytes of each message that carries `bundles` between one pair of ranks."""
    sizes: list[int] = []
    for bundle in bundles:
        for fragment in bundle.fragments:
            if not sizes or sizes[-1] + fragment.num_bytes > bucket_bytes:
                sizes.append(0)
            sizes[-1] += fragment.num_bytes
    return sizes
