"""Regular expressions that users write, as settings."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"no regular expression ({error})") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_check_pattern)]
