"""Statistics of one rank in one transfer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from verl_hpc.transfer.message import Message


@dataclass
class TransferStats:
    """Payload bytes of one rank; checksums are not counted."""

    sent_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes sent to each rank."""
    received_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes received from each rank."""
    copied_bytes: int = 0
    """Bytes copied from the rank's own source memory."""
    read_bytes: int = 0
    """Bytes read from files."""
    messages: int = 0
    """Messages sent."""
    in_place_bytes: int = 0
    """Bytes sent or received without a copy through a bucket."""
    peak_buffer_bytes: int = 0
    """Bytes of all buckets together."""
    seconds: float = 0.0

    def sent(self, message: Message) -> None:
        """Count a message that leaves."""
        self.sent_bytes[message.peer] += message.data.numel()
        self.messages += 1
        self.in_place_bytes += message.in_place * message.data.numel()

    def received(self, message: Message) -> None:
        """Count a message that arrives."""
        self.received_bytes[message.peer] += message.data.numel()
        self.in_place_bytes += message.in_place * message.data.numel()

    @property
    def total_received_bytes(self) -> int:
        return sum(self.received_bytes.values())
