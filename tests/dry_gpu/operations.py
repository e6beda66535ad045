"""Operations that the host sends to a device, which take its time however small they are.

What one call of a library does counts once: a kernel of Transformer Engine, and a function that
torch.compile makes one kernel of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

_FURTHER_VIEWS = ("_unsafe_view", "_reshape_alias")


class Operations:
    """Counts what is dispatched on the device, by name.

    Nothing is computed on another device than the one of this process, so that there is one count.
    """

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        """Kernels, collectives and allocations."""
        self.views: Counter[str] = Counter()
        """Views, which no kernel is launched for."""
        self._inside = 0

    def clear(self) -> None:
        """Count anew from here on."""
        self.sent.clear()
        self.views.clear()

    def note(self, func: Any) -> None:
        """Count an operation of PyTorch."""
        namespace, _, name = func._schema.name.partition("::")
        # A fake tensor is asked for its device by prim::device; a real one has it.
        if self._inside or namespace == "prim":
            return
        kind = self.views if func.is_view or name in _FURTHER_VIEWS else self.sent
        kind[name] += 1

    def as_one(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function whose operations count as one, of its name."""
        if not self._inside:
            self.sent[function.__name__] += 1
        self._inside += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._inside -= 1
