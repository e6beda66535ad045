"""Checks between the sections of a run, made once all are read."""

from __future__ import annotations

from collections.abc import Mapping


def refuse(given: Mapping[str, bool], why: str) -> None:
    """Check that no setting of a table is given.

    Args:
        given: whether it is given, by a setting in words.
        why: what an error says after the setting, and what to do.

    Raises:
        ValueError: one is given; the first counts.
    """
    for setting, is_given in given.items():
        if is_given:
            raise ValueError(f"{setting}{why}")
