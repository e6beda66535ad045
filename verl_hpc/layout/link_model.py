"""How long a transfer will take: its messages, simulated over links of given speeds.

The model knows three things that take time. A message crosses a link, NVLink within a node or the
network, one at a time each way and at full speed. A message that passes through a bucket is copied
there and back by the device's memory. A checksum reads every byte. Wire and memory work side
by side, two messages at a time, as `transfer.exchange` lets them. It knows nothing of congestion in
switches, of work in kernels too small to fill a device, or of CPUs that are late.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from verl_hpc.layout.box import row_major_strides
from verl_hpc.layout.fragments import Fragment, Piece
from verl_hpc.layout.messages import messages, routes_by_pair
from verl_hpc.layout.planner import Plan, Route
from verl_hpc.layout.rounds import Pair, rounds_of
from verl_hpc.section import PositiveFinite, Section


class Links(Section):
    """Speeds that messages reach on links and in memory, by default of an H100; 1 GB is 10^9
    bytes."""

    nvlink_gb_s: PositiveFinite = 200.0
    """Bandwidth between two GPUs of a node, each way, in GB/s."""
    network_gb_s: PositiveFinite = 45.0
    """Per GPU, each way, in GB/s: a node's share of the network by its GPUs. 400 Gb/s InfiniBand
    per GPU brings 45."""
    memory_gb_s: PositiveFinite = 2010.0
    """Bytes that a GPU's memory reads and writes, together, in GB/s."""
    message_us: PositiveFinite = 20.0
    """Time that a message takes however small it is, in microseconds."""


_MOST_STEPS = 50_000
"""In hops with more messages, several rounds are simulated as one."""


class _Load(NamedTuple):
    """Messages that one rank sends to another; bytes."""

    messages: int
    num_bytes: int
    packed: int
    """Copied into a bucket by the sender."""
    unpacked: int
    """Copied out of a bucket by the receiver."""
    summed: int
    """Bytes whose checksum the sender computed when it received them: fragments that arrived as
    messages of their own and are relayed unchanged."""

    def and_then(self, other: _Load) -> _Load:
        return _Load(*map(int.__add__, self, other))

    def without(self, other: _Load) -> _Load:
        return _Load(*map(int.__sub__, self, other))


_NOTHING = _Load(0, 0, 0, 0, 0)


def predicted_seconds(
    plan: Plan, node_of: Sequence[int], links: Links, checksums: bool = True
) -> float:
    """Seconds until the last rank has everything.

    Args:
        plan: from ranks to ranks.
        node_of: node index of each rank.
        links: what they carry.
        checksums: of all messages.
    """
    simulation = _Simulation(node_of, links, checksums)
    for bundle in plan.bundles:
        for rank in set(bundle.sources).intersection(bundle.targets):
            simulation.work[int(rank)] += 2 * bundle.num_bytes / (links.memory_gb_s * 1e9)
    for hop in plan.hops:
        simulation.run(routes_by_pair(hop), plan.bucket_bytes)
    return max(simulation.work.values(), default=0.0)


def limit_seconds(plan: Plan, node_of: Sequence[int], links: Links) -> float:
    """Lower bound on the seconds for any order of messages: the time in which the network brings
    the fullest node its bytes, or NVLink the fullest rank."""
    per_rank = [num_bytes / links.nvlink_gb_s for num_bytes in plan.received_bytes.values()]
    num_gpus = Counter(node_of)
    per_node = [
        num_bytes / (num_gpus[node] * links.network_gb_s)
        for node, num_bytes in plan.inbound_bytes(node_of).items()
    ]
    return max([*per_rank, *per_node], default=0.0) / 1e9


class _Simulation:
    """Times of all ranks, in seconds since the transfer began.

    Every rank has a wire and a memory, each busy with one thing at a time: the memory packs round
    n + 1, then, when round n has passed, unpacks that.
    """

    def __init__(self, node_of: Sequence[int], links: Links, checksums: bool) -> None:
        self._node_of, self._checksums = node_of, checksums
        self._memory = links.memory_gb_s * 1e9
        self._speeds = {True: links.nvlink_gb_s * 1e9, False: links.network_gb_s * 1e9}
        self._latency = links.message_us / 1e6
        self.work: dict[int, float] = defaultdict(float)
        """Time at which each rank's memory has finished its work so far."""
        self._wire: dict[int, float] = defaultdict(float)
        """Time at which each rank's rounds so far have passed."""
        self._under_way: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """Rounds in flight of each rank: when each has passed, and the seconds of work that it
        causes."""

    def run(self, by_pair: Mapping[Pair, Sequence[Route]], bucket_bytes: int) -> None:
        """The messages of one hop."""
        for loads in _by_round(by_pair, bucket_bytes):
            self._pack(loads)
            passed = self._pass(loads)
            unpacking: dict[int, float] = defaultdict(float)
            for (_, receiver), load in loads.items():
                unpacking[receiver] += self._unpacking(load)
            for rank, end in passed.items():
                self._wire[rank] = end
                self._under_way[rank].append((end, unpacking[rank]))
        for rank in self._under_way:
            self._unpack(rank, 0)

    def _pack(self, loads: Mapping[Pair, _Load]) -> None:
        """Make room for a round on all its ranks, then pack what they send."""
        for rank in {rank for pair in loads for rank in pair}:
            self._unpack(rank, 1)
        for (sender, _), load in loads.items():
            summed = self._checksums * (load.num_bytes - load.summed)
            self.work[sender] += (2 * load.packed + summed) / self._memory

    def _pass(self, loads: Mapping[Pair, _Load]) -> dict[int, float]:
        """Times at which the wires of a round's ranks are free again; a rank's wires begin when all
        ranks that it exchanges messages with are ready."""
        start: dict[int, float] = defaultdict(float)
        sending: dict[int, float] = defaultdict(float)
        receiving: dict[int, float] = defaultdict(float)
        for pair, load in loads.items():
            ready = max(max(self.work[rank], self._wire[rank]) for rank in pair)
            seconds = self._seconds(pair, load)
            sending[pair[0]] += seconds
            receiving[pair[1]] += seconds
            for rank in pair:
                start[rank] = max(start[rank], ready)
        return {rank: t + max(sending[rank], receiving[rank]) for rank, t in start.items()}

    def _seconds(self, pair: Pair, load: _Load) -> float:
        speed = self._speeds[self._node_of[pair[0]] == self._node_of[pair[1]]]
        return load.messages * self._latency + load.num_bytes / speed

    def _unpack(self, rank: int, left: int) -> None:
        """Wait for rounds until so many are `left` under way, and unpack them."""
        rounds = self._under_way[rank]
        while len(rounds) > left:
            end, seconds = rounds.pop(0)
            self.work[rank] = max(self.work[rank], end) + seconds

    def _unpacking(self, load: _Load) -> float:
        return (2 * load.unpacked + self._checksums * load.num_bytes) / self._memory


def _by_round(
    by_pair: Mapping[Pair, Sequence[Route]], bucket_bytes: int
) -> list[dict[Pair, _Load]]:
    """Messages of each round; where there are too many rounds, several are taken as one."""
    of_pair = _sums_of_pairs(by_pair, bucket_bytes)
    num_messages = sum(len(sums) - 1 for sums in of_pair.values())
    width = num_messages // _MOST_STEPS + 1
    by_round: list[dict[Pair, _Load]] = []
    for pair, runs in rounds_of({pair: len(sums) - 1 for pair, sums in of_pair.items()}).items():
        sums, done = of_pair[pair], 0
        for first, n in runs:
            for place in range(first // width, (first + n - 1) // width + 1):
                upto = done + min((place + 1) * width, first + n) - max(place * width, first)
                by_round += [{} for _ in range(place + 1 - len(by_round))]
                load = sums[upto].without(sums[done])
                by_round[place][pair] = by_round[place].get(pair, _NOTHING).and_then(load)
                done = upto
    return by_round


def _sums_of_pairs(
    by_pair: Mapping[Pair, Sequence[Route]], bucket_bytes: int
) -> dict[Pair, list[_Load]]:
    """Cumulative loads of each pair: the sum of its first 0, 1, 2, ... messages. Pairs that carry
    the same share one list."""
    known: dict[tuple[tuple[int, bool], ...], list[_Load]] = {}
    sums: dict[Pair, list[_Load]] = {}
    for pair, routes in by_pair.items():
        key = tuple((id(route.bundle), route.relay) for route in routes)
        if key not in known:
            loads = map(_load, messages(routes, bucket_bytes))
            known[key] = list(accumulate(loads, _Load.and_then, initial=_NOTHING))
        sums[pair] = known[key]
    return sums


def _load(message: Sequence[tuple[Fragment, Route]]) -> _Load:
    num_bytes = sum(fragment.num_bytes for fragment, _ in message)
    if len(message) > 1:
        return _Load(1, num_bytes, num_bytes, num_bytes, 0)
    ((fragment, route),) = message
    sender = fragment.target if route.relay else fragment.source
    packed, unpacked = (
        0 if _lies_in_one_piece(piece, fragment) else num_bytes
        for piece in (sender, fragment.target)
    )
    return _Load(1, num_bytes, packed, unpacked, num_bytes if route.relay else 0)


def _lies_in_one_piece(piece: Piece, fragment: Fragment) -> bool:
    """Whether a fragment's elements follow each other in memory."""
    shape, held = fragment.shape, piece.regions[0].view.strides
    strides = [held[dim] for dim in fragment.order]
    wanted = row_major_strides(shape)
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, wanted, strict=True))
