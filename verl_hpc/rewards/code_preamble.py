"""Names that judges of programs import before a program.

The modules are those of APPS, LiveCodeBench and PRIME, each with `import M` and `from M import *`
(verl's prime_code and sandbox_fusion have the same list).
"""

from __future__ import annotations

import builtins
import importlib
import re
from functools import cache
from types import ModuleType

_MODULES = (
    # typing comes first: it also has a Counter, and collections' is meant.
    *("typing", "string", "re", "datetime", "collections", "heapq", "bisect", "copy"),
    *("math", "random", "statistics", "itertools", "functools", "operator", "io", "sys", "json"),
)
_WORD = re.compile(r"[A-Za-z_]\w*")


def preamble_of(program: str) -> dict[str, str]:
    """Return the names of the preamble that occur in a program, and the module of each.

    Only modules that a program uses are imported: all of them take longer than its interpreter's
    start.
    """
    known = _names()
    return {word: known[word] for word in dict.fromkeys(_WORD.findall(program)) if word in known}


@cache
def _names() -> dict[str, str]:
    modules: dict[str, str] = {}
    for name in _MODULES:
        module = importlib.import_module(name)
        modules |= dict.fromkeys(_exported(module), name)
    # A module comes after what others have of its name: datetime, copy.
    modules |= {name: name for name in _MODULES}
    return {name: module for name, module in modules.items() if not hasattr(builtins, name)}


def _exported(module: ModuleType) -> list[str]:
    public = [name for name in dir(module) if not name.startswith("_")]
    return list(getattr(module, "__all__", public))
