"""How a configuration writes which ranks have a label."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

FORMS = "one rank (3), neighbours (0-3), nodes (nodes 0-1), a share of all (1/2) or all"
SHARE = re.compile(r"(\d{1,6})/([1-9]\d{0,5})")
SPAN = re.compile(r"(nodes? +)?(\d{1,9})(?: *- *(\d{1,9}))?")


def _as_text(value: object) -> object:
    """Return a single rank, which YAML reads as a number, as text."""
    return str(value) if type(value) is int else value


def _check(text: str) -> str:
    text = text.strip()
    if text != "all" and not SHARE.fullmatch(text) and not SPAN.fullmatch(text):
        raise ValueError(f"expected {FORMS}")
    return text


Ranks = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check)]
