"""torch, imported on first use, so that login nodes can read the settings of algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            import torch

            value = getattr(torch, name)
            setattr(self, name, value)  # so that this is not asked for again
            return value

    torch = _Torch()
