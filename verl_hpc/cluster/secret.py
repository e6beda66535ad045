"""Which environment variables must not be written down."""

from __future__ import annotations

import re

_SECRET = re.compile(r"TOKEN(_|$)|(^|_|API|ACCESS)KEY(_|$)|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.I)


def looks_secret(name: str) -> bool:
    """True for names such as HF_TOKEN or WANDB_API_KEY, not for TOKENIZERS_PARALLELISM."""
    return _SECRET.search(name) is not None
