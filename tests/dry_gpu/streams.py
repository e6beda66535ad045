"""The order in which a device's streams work, and work that nothing has put in order.

Every stream, and the host, knows how far it has waited for each stream (a vector clock). What one
stream writes, another may touch only once it has waited for that; so with the host and memory that
is page-locked. torch.cuda's own sanitizer looks for the same on real devices.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from tests.dry_gpu.places import asked_by

HOST = -1
Clock = dict[int, int]


class _Use(NamedTuple):
    stream: int
    time: int
    writes: bool
    start: int = 0
    """First byte in the storage."""
    stop: int = sys.maxsize

    def meets(self, other: _Use) -> bool:
        """Whether both use the same bytes, and one changes them."""
        apart = self.stop <= other.start or other.stop <= self.start
        return not apart and (self.writes or other.writes)

    def replaces(self, other: _Use) -> bool:
        """Whether whoever has waited for this one has waited for all that matters of the other."""
        inside = self.start <= other.start and other.stop <= self.stop
        return inside and self.stream == other.stream and self.writes >= other.writes


class History:
    """Uses of a storage.

    Args:
        stream: on which it was allocated; freed, it may be given to that stream's next work.
        old: it is from before there was a second stream.
    """

    def __init__(self, stream: int, old: bool) -> None:
        self.stream, self.old = stream, old
        self.uses: list[_Use] = []
        self.recorded: set[int] = set()
        """Streams of which the allocator was told, by record_stream."""


class Order:
    """Who has waited for whom. Streams are numbers; 0 is the default one."""

    def __init__(self) -> None:
        self.current = 0
        self.races: list[str] = []
        """Uses that no wait puts in order."""
        self._several = False
        self._time: Clock = defaultdict(int)
        """Operations begun on each stream."""
        self._waited: dict[int, Clock] = defaultdict(lambda: defaultdict(int))
        """How far each has waited for each stream."""
        self._before = _Use(0, 0, True)
        """What the default stream did before there was another one."""
        self._freed: dict[int, list[_Use]] = defaultdict(list)
        """Other streams' uses of memory that was freed on a stream."""
        self._copies = False
        """Whether page-locked memory was ever copied without waiting."""

    # ---------------------------------------------------------------- waiting

    def enter(self, stream: int) -> None:
        """Work on another stream from here on."""
        self.current = stream
        if stream and not self._several:
            self._several, self._before = True, _Use(0, self._time[0], True)

    def moment(self, stream: int) -> Clock:
        """What is done when `stream` has done all that was begun on it: an event's contents."""
        return dict(self._waited[stream]) | {stream: self._time[stream]}

    def wait(self, who: int, until: Clock) -> None:
        """A stream, or the host, waits for what an event recorded."""
        known = self._waited[who]
        for stream, time in until.items():
            known[stream] = max(known[stream], time)

    def host_waits(self, stream: int | None = None) -> None:
        """The host waits for one stream, or for the whole device."""
        for one in list(self._time) if stream is None else [stream]:
            self.wait(HOST, self.moment(one))

    # ---------------------------------------------------------------- work

    def works(self, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor]) -> None:
        """An operation is begun on the current stream."""
        self._time[self.current] += 1
        # What the host did before is done; alone on its stream an operation follows the others.
        if not self._several:
            return
        for tensor in writes:
            self._use(tensor, writes=True)
        for tensor in reads:
            self._use(tensor, writes=False)

    def aside(
        self, stream: int, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor]
    ) -> Clock:
        """Another stream waits for the current one and works; return the moment when it is done.

        So NCCL does: whoever wants the result waits for that moment."""
        self.wait(stream, self.moment(self.current))
        before = self.current
        self.enter(stream)
        self.works(reads, writes)
        self.current = before
        return self.moment(stream)

    def copies(self, on_host: torch.Tensor, writes: bool) -> None:
        """The current stream copies from or to page-locked memory, and the host does not wait."""
        self._copies = True
        storage: Any = on_host.untyped_storage()
        storage.copied = _Use(self.current, self._time[self.current], writes)

    def host_touches(self, tensors: Iterable[torch.Tensor], writes: bool) -> None:
        """The host computes with tensors of its own memory."""
        for tensor in tensors if self._copies else ():
            use = getattr(tensor.untyped_storage(), "copied", None)
            if use is None or self._waited[HOST][use.stream] >= use.time:
                continue
            if use.writes or writes:
                self._race("the host uses page-locked memory that a copy is still to reach")

    def allocated(self, storage: Any) -> History:
        """Begin the history of a storage, which goes with it. Its memory may be what was freed on
        this stream before."""
        for use in self._freed.pop(self.current, ()):
            if self._waited[self.current][use.stream] < use.time:
                self._race(f"what stream {use.stream} uses was freed without record_stream")
        storage.history = History(self.current, old=not self._several)
        return storage.history

    def freed(self, history: History) -> None:
        """A storage's memory may be used again by the stream that it was allocated on."""
        told = {history.stream, *history.recorded}
        self._freed[history.stream] += [use for use in history.uses if use.stream not in told]

    def _use(self, tensor: torch.Tensor, writes: bool) -> None:
        storage: Any = tensor.untyped_storage()
        here, known = self.current, self._waited[self.current]
        history = getattr(storage, "history", None) or self.allocated(storage)
        mine = _Use(here, self._time[here], writes, *_bytes_of(tensor))
        uses = history.uses or ([self._before] if history.old else [])
        for use in uses:
            if use.stream != here and known[use.stream] < use.time and use.meets(mine):
                self._race(f"stream {here} touches what stream {use.stream} is not done with")
        history.uses = [*(use for use in uses if not mine.replaces(use)), mine]

    def _race(self, what: str) -> None:
        self.races.append(f"{what}: {asked_by()}")


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor begins and ends in its storage."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    size, first = tensor.element_size(), tensor.storage_offset()
    return first * size, (first + last + 1) * size if tensor.numel() else first * size
