"""Collectives of point-to-point messages, in as many rounds as the number of ranks has bits.

An MPI library sends what is large round a ring: 4,095 rounds for 4,096 ranks, in each of which a
rank waits until another looks for messages again. Here it takes 12. Ranks are numbered node by
node, so that the first rounds stay inside a node.

Sources: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", 1997 (all-gather); Hensgen, Finkel and Manber, "Two algorithms for barrier
synchronization", 1988 (dissemination, here of a value); binomial trees for the rest.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from verl_hpc.runtime.channel import Messages

T = TypeVar("T")
Exchange = Callable[[Messages, Messages], None]
"""Sends arrays and fills arrays, both by the other rank; returns when all is sent and filled."""

ENVELOPE, HEAD = 64, 8
"""Bytes of the message that says how long a value is, and has it where there is room behind that
number."""


@dataclass(frozen=True)
class Peers:
    """The ranks of a collective, as one of them sees them."""

    rank: int
    size: int
    exchange: Exchange

    def swap(self, to: int | None, data: Any, source: int | None) -> Any:
        """Send bytes to one rank and receive those of another, (n,) uint8; None is nobody."""
        mine: Any = np.zeros(ENVELOPE, np.uint8)
        theirs: Any = np.empty(ENVELOPE, np.uint8)
        mine[:HEAD].view(np.int64)[0] = data.size
        room = ENVELOPE - HEAD
        if data.size <= room:
            mine[HEAD : HEAD + data.size] = data
        self.exchange(_of(to, mine), _of(source, theirs))
        size = int(theirs[:HEAD].view(np.int64)[0]) if source is not None else 0
        rest: Any = np.empty(size if size > room else 0, np.uint8)
        sends = _of(to if data.size > room else None, data)
        receives = _of(source if size > room else None, rest)
        if sends or receives:
            self.exchange(sends, receives)
        return rest if size > room else theirs[HEAD : HEAD + size]


def _of(rank: int | None, data: Any) -> Messages:
    return [] if rank is None else [(rank, data)]


def dumped(value: Any) -> Any:
    """A value as (n,) uint8."""
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)


def loaded(data: Any) -> Any:
    # These bytes were pickled a moment ago by ranks of this very program.
    return pickle.loads(data.tobytes())  # noqa: S301


def merge(peers: Peers, value: T, combine: Callable[[T, T], T]) -> T:
    """What all ranks' values combine to.

    Args:
        combine: in whatever order, and the same value more than once: a maximum, a union.
    """
    distance = 1
    while distance < peers.size:
        to, source = ((peers.rank + d) % peers.size for d in (distance, -distance))
        value = combine(value, loaded(peers.swap(to, dumped(value), source)))
        distance *= 2
    return value


def allgather(peers: Peers, data: Any) -> tuple[Any, Any]:
    """Bytes of all ranks, one after the other, (n,) uint8, and how many each has, (size,) int64.

    A rank has those of itself and the next ranks: 1, 2, 4 and so on of them::

        rank        0     1     2     3     4
        at first    0     1     2     3     4
        distance 1  01    12    23    34    40
        distance 2  0123  1234  2340  3401  4012
        distance 4  all
    """
    known, sizes = data, np.array([data.size], dtype=np.uint32)
    while sizes.size < peers.size:
        distance = sizes.size
        told = sizes[: peers.size - distance]
        part = known[: told.sum(dtype=np.int64)]
        to, source = ((peers.rank + d) % peers.size for d in (-distance, distance))
        received = peers.swap(to, np.concatenate([told.view(np.uint8), part]), source)
        cut = told.nbytes
        sizes = np.concatenate([sizes, received[:cut].view(np.uint32)])
        known = np.concatenate([known, received[cut:]])
    before = sizes[peers.size - peers.rank :].sum(dtype=np.int64)  # of rank 0 and up to this one
    return np.roll(known, before), np.roll(sizes, peers.rank).astype(np.int64)


def gather(peers: Peers, data: Any, root: int) -> tuple[Any, Any]:
    """What `allgather` gives, on the root; nothing elsewhere."""
    known, sizes = data, np.array([data.size], dtype=np.uint32)
    for step, parent, child in _branches(peers, root):
        if parent is not None:
            peers.swap(parent, np.concatenate([sizes.view(np.uint8), known]), None)
            break
        if child is not None:
            place = (child - root) % peers.size
            cut = 4 * min(step, peers.size - place)
            received = peers.swap(None, known[:0], child)
            sizes = np.concatenate([sizes, received[:cut].view(np.uint32)])
            known = np.concatenate([known, received[cut:]])
    if peers.rank != root:
        return known[:0], sizes[:0].astype(np.int64)
    before = sizes[peers.size - root :].sum(dtype=np.int64)
    return np.roll(known, before), np.roll(sizes, root).astype(np.int64)


def broadcast(peers: Peers, data: Any, root: int) -> Any:
    """The root's bytes, (n,) uint8."""
    for _, parent, child in reversed(list(_branches(peers, root))):
        if parent is not None:
            data = peers.swap(None, data[:0], parent)
        elif child is not None:
            peers.swap(child, data, None)
    return data


def _branches(peers: Peers, root: int) -> Iterator[tuple[int, int | None, int | None]]:
    """A rank's place in the binomial tree of a root, from the leaves to it: the round's distance,
    and the parent or child it has in that round, if any. Below its parent it has nothing to do."""
    place, step = (peers.rank - root) % peers.size, 1
    while step < peers.size:
        if place % (2 * step) == step:
            yield step, (place - step + root) % peers.size, None
            return
        has_child = place + step < peers.size
        yield step, None, (place + step + root) % peers.size if has_child else None
        step *= 2
