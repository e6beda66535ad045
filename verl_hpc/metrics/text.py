"""Format figures for people."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal

_BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float | None) -> str:
    """Format to four significant digits, more for thousands: 9.5e-5, 0.4312, 12,346, 3.1M; '-' for
    None.

    Below a thousandth and from 10^15 the exponent is always written, so that 1e-4 and 9.5e-5 look
    alike.
    """
    if value is None:
        return "-"
    if value and _has_exponent(abs(value)):
        return _exponential(value)
    scale, suffix = _scale(abs(value))
    if suffix:
        return f"{value / scale:.4g}{suffix}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def plain(value: float) -> str:
    """Format all digits of a number without an exponent, so that reading it gives the same number:
    1234567, 0.1."""
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the labels of an axis, all in the notation of `number` for the largest, with the
    decimals that their distances need."""
    largest = max(map(abs, ticks))
    if _has_exponent(largest):
        return [_exponential(tick) if tick else "0" for tick in ticks]
    scale, suffix = _scale(largest)
    _, exponent = f"{(ticks[1] - ticks[0]) / scale:.0e}".split("e")
    decimals = max(-int(exponent), 0)
    return [f"{tick / scale:,.{decimals}f}{suffix}" for tick in ticks]


def _has_exponent(magnitude: float) -> bool:
    return magnitude < 1e-3 or 1e15 <= magnitude < math.inf


def _exponential(value: float) -> str:
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _scale(magnitude: float) -> tuple[float, str]:
    for scale, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if scale <= magnitude < math.inf:
            return scale, suffix
    return 1.0, ""


def duration(seconds: float | None) -> str:
    """Format seconds as '80ms', '9.4s', '3m 05s' or '27h 04m'; '-' for None."""
    if seconds is None:
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m"


def size(num_bytes: float | None) -> str:
    """Format bytes in binary units, '1.50 KiB'; '-' for None."""
    if num_bytes is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.2f} TiB"


_DIRECTIONS = frozenset(("LRE", "LRO", "RLE", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"))
"""Unicode's bidirectional classes of characters that turn the text around them."""


def visible(words: str) -> str:
    """Escape what would act unseen: control characters other than line breaks and tabs, surrogates
    and marks of direction become their codes, such as \\x1b."""
    return "".join(map(_visible, words))


def _visible(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    hidden = unicodedata.category(character) in ("Cc", "Cs")
    if hidden or unicodedata.bidirectional(character) in _DIRECTIONS:
        return character.encode("unicode_escape").decode("ascii")
    return character


def sparkline(values: Iterable[float]) -> str:
    """Draw values as blocks from the lowest to the highest, without those that are not finite."""
    finite = [v for v in values if math.isfinite(v)]
    low = min(finite, default=0.0)
    span = max(finite, default=0.0) - low or 1.0
    return "".join(_BLOCKS[round((v - low) / span * (len(_BLOCKS) - 1))] for v in finite)
