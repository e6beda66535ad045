"""Name the function that asked for something."""

from __future__ import annotations

import sys
from types import FrameType


def asked_by() -> str:
    """Name the innermost function of verl_hpc on the stack, and of a library if that is deeper:
    "clip_grads.get_grad_norm_fp32 in optimizer.step". Functions, since lines move."""
    library, frame = "", sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/verl_hpc/" in file and "/tests/" not in file:
            own = _named(frame)
            return f"{library} in {own}" if library else own
        if not library and "/torch/" not in file and "/tests/dry_gpu/" not in file:
            library = _named(frame)
        frame = frame.f_back
    return library or "the test"


def _named(frame: FrameType) -> str:
    file = frame.f_code.co_filename.rsplit("/", 1)[-1].removesuffix(".py")
    return f"{file}.{frame.f_code.co_name}"
