"""Decide by their text which questions are held out for evaluation, so that no run can mix them."""

from __future__ import annotations

from hashlib import blake2b


def is_held_out(question: str, share: float) -> bool:
    """Whether a question belongs to evaluation.

    It follows from the text alone, but for runs of white space: not from the seed, the row or the
    size of a data set. A larger share holds out all that a smaller one does.
    """
    return digest(plain(question), size=8) < int(share * 2**64).to_bytes(8, "big")


def plain(text: str) -> str:
    """Return a text with one space for each run of white space, and none at its ends."""
    return " ".join(text.split())


def digest(text: str, size: int) -> bytes:
    """Return the BLAKE2b digest of a text, `size` bytes long."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()
