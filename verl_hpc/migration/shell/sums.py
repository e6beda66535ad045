"""`$((...))`, as bash computes it, of whole numbers."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from verl_hpc.errors import ConfigError

_ALLOWED = re.compile(r"(?:[A-Za-z_]\w*|\d+(?!\w)|[-+*/%()\s])*")
_STEPS = re.compile(r"\+\s*\+|-\s*-")
_DEEPEST = 20
_LARGEST = 2**63


def _quotient(a: int, b: int) -> int:
    """As C does: towards zero."""
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


_TWO: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: _remainder,
}
_ONE: dict[type[ast.unaryop], Callable[[int], int]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def total(text: str, value: Callable[[str], str]) -> int:
    """Of a sum, with `+ - * / %` and brackets.

    Args:
        text: between the brackets; `$NAME` is replaced already.
        value: of a variable; it may be a sum, too.

    Raises:
        ConfigError: something else is in it, it divides by zero, or is no number of 64 bits.
    """
    return _total(text, value, {}, 0)


def _total(text: str, value: Callable[[str], str], known: dict[str, int], depth: int) -> int:
    """As `total`; `known` are variables that are computed already: each is once."""
    told = f"$(({text}))"
    wrong = f"{told}: expected whole numbers with + - * / % and brackets"
    if not _ALLOWED.fullmatch(text) or _STEPS.search(text):
        raise ConfigError(wrong)
    if depth > _DEEPEST:
        raise ConfigError(f"{told}: more than {_DEEPEST} variables are sums of one another")

    def of(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            found = node.value
        elif isinstance(node, ast.Name):
            if node.id not in known:
                known[node.id] = _total(value(node.id), value, known, depth + 1)
            found = known[node.id]
        elif isinstance(node, ast.UnaryOp) and type(node.op) in _ONE:
            found = _ONE[type(node.op)](of(node.operand))
        elif isinstance(node, ast.BinOp) and type(node.op) in _TWO:
            left, right = of(node.left), of(node.right)
            if right == 0 and isinstance(node.op, ast.Div | ast.Mod):
                raise ConfigError(f"{told}: divides by zero")
            found = _TWO[type(node.op)](left, right)
        else:
            raise ConfigError(wrong)
        if not -_LARGEST <= found < _LARGEST:
            raise ConfigError(f"{told}: is no whole number of 64 bits")
        return found

    plain = " ".join(text.split())
    try:
        return of(ast.parse(plain, mode="eval").body) if plain else 0
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(wrong) from None
