"""Parse command-line words such as `tp=8,pp=4,dp=2`."""

from __future__ import annotations

from collections.abc import Iterable

from verl_hpc.errors import ConfigError


def parse_sizes(flag: str, text: str, allowed: Iterable[str]) -> dict[str, int]:
    """Read `axis=number,axis=number`.

    Raises:
        ConfigError: an axis that is not in `allowed`, given twice, or not a whole number from 1.
    """
    known = tuple(allowed)
    sizes: dict[str, int] = {}
    for word in text.split(","):
        axis, _, number = word.strip().partition("=")
        if axis not in known or axis in sizes:
            raise ConfigError(f"{flag} {text}: {word!r}; give each of {', '.join(known)} once")
        if not number.isdecimal() or int(number) < 1:
            raise ConfigError(f"{flag} {text}: {axis} = {number!r}; a whole number from 1 up")
        sizes[axis] = int(number)
    return sizes
