"""Which questions are kept for evaluation: decided by their text, so that no run can mix them."""

from __future__ import annotations

from hashlib import blake2b


def is_held_out(question: str, share: float) -> bool:
    """Whether a question belongs to evaluation.

    It follows from the text alone, but for runs of white space: not from the seed, the row or the
    size of a data set. What a share holds out, a larger share holds out too.
    """
    return digest(plain(question), size=8) < int(share * 2**64).to_bytes(8, "big")


def plain(text: str) -> str:
    """A text with one space for each run of white space, and none at its ends."""
    return " ".join(text.split())


def digest(text: str, size: int) -> bytes:
    """BLAKE2b of a text, of so many bytes."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()
