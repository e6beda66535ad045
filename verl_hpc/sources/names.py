"""Names of models on a hub, as settings and the command line spell them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Hub = Literal["hf", "modelscope"]

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(
    rf"(?:(?P<hub>hf|modelscope):)?(?P<repo>{_PART}/{_PART})"
    r"(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,199}))?"
)


@dataclass(frozen=True)
class HubName:
    """A repository on a hub, and which state of it."""

    hub: Hub
    repo: str
    """ORG/NAME."""
    revision: str | None = None
    """A branch, a tag or a commit; None is the hub's default branch."""

    def __str__(self) -> str:
        prefix = "" if self.hub == "hf" else f"{self.hub}:"
        return f"{prefix}{self.repo}" + (f"@{self.revision}" if self.revision else "")


def parse_name(text: str) -> HubName | None:
    """Read `ORG/NAME`, `ORG/NAME@REVISION`, and either with the prefix `hf:` or `modelscope:`.

    None where the text has another form, and so can only be a path.
    """
    match = _NAME.fullmatch(text)
    if match is None or ".." in text:
        return None
    hub: Hub = "modelscope" if match["hub"] == "modelscope" else "hf"
    return HubName(hub, match["repo"], match["revision"])
