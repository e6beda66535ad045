"""What a run does until its first step, told as it begins: minutes may pass before a step is."""

from __future__ import annotations

import time

_BEGAN = time.monotonic()


def announce(stage: str, terminal: str) -> None:
    """A line on stdout, with the seconds since this process began; rank 0's alone to call.

    Args:
        stage: what begins.
        terminal: the setting of that name; off says nothing.
    """
    if terminal != "off":
        print(f"verl_hpc: {time.monotonic() - _BEGAN:.0f} s: {stage}", flush=True)
