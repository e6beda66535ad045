"""One rank's part of a plan: what it copies, reads, sends and receives, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from verl_hpc.layout.box import Box, View
from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.messages import messages, routes_by_pair, schedule
from verl_hpc.layout.planner import Plan, Route


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
    sent: View
    """Where the sender holds it."""
    targets: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part of a round: at most one message each way.

    The fragments of a message come in the same order at both its ends.
    """

    to: int = -1
    sends: Sequence[Send] = ()
    """Fragments to send, if any."""
    frm: int = -1
    receives: Sequence[Receive] = ()
    """Fragments to receive, if any."""

    def without(self, peers: Collection[int]) -> Step:
        """The step without messages to or from `peers`."""
        return Step(
            self.to,
            () if self.to in peers else self.sends,
            self.frm,
            () if self.frm in peers else self.receives,
        )


@dataclass(frozen=True)
class RankMoves:
    """Everything one rank does in a transfer."""

    rank: int
    copies: Sequence[Copy]
    reads: Sequence[Read]
    hops: Sequence[Sequence[Step]]
    """For each hop, the steps in the order of their rounds."""


def moves_of(plan: Plan, rank: int) -> RankMoves:
    """The part of `rank` in a plan.

    Costs a pass over the plan's routes, and the order of all its messages.
    """
    return RankMoves(
        rank,
        [
            Copy(f, f.source.views(rank, f.box)[0], f.target.views(rank, f.box))
            for bundle in plan.bundles
            if rank in bundle.targets and rank in bundle.sources
            for f in bundle.fragments
        ],
        [read for route in plan.reads if route.target == rank for read in _reads(route)],
        [_steps(hop, rank, plan.bucket_bytes) for hop in plan.hops],
    )


def _reads(route: Route) -> Iterator[Read]:
    for f in route.bundle.fragments:
        region = f.source.regions[0]
        targets = f.target.views(route.target, f.box)
        yield Read(f, str(route.source), region.view.name, f.box.relative_to(region.box), targets)


def _steps(hop: Sequence[Route], rank: int, bucket_bytes: int) -> list[Step]:
    by_pair = routes_by_pair(hop)
    sending: dict[int, tuple[int, list[Send]]] = {}
    receiving: dict[int, tuple[int, list[Receive]]] = {}
    for pair, runs in schedule(by_pair, bucket_bytes).items():
        if rank not in pair:
            continue
        rounds = [first + i for first, n in runs for i in range(n)]
        for place, message in zip(rounds, messages(by_pair[pair], bucket_bytes), strict=True):
            if rank == pair[0]:
                sending[place] = pair[1], [_send(*item) for item in message]
            else:
                receiving[place] = pair[0], [_receive(*item) for item in message]
    nothing = (-1, ())
    return [
        Step(*sending.get(place, nothing), *receiving.get(place, nothing))
        for place in sorted({*sending, *receiving})
    ]


def _send(fragment: Fragment, route: Route) -> Send:
    return Send(fragment, _sent(fragment, route), route.relay)


def _receive(fragment: Fragment, route: Route) -> Receive:
    targets = fragment.target.views(route.target, fragment.box)
    return Receive(fragment, _sent(fragment, route), targets)


def _sent(fragment: Fragment, route: Route) -> View:
    piece = fragment.target if route.relay else fragment.source
    return piece.views(route.source, fragment.box)[0]
