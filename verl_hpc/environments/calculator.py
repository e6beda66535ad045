"""A tool that does sums: the model writes <calc>12*(3+4)</calc>, and reads 84."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from verl_hpc.environments.environment import Tool

_LONGEST = 200
"""Most characters of an expression, and of a result."""
_LARGEST_POWER = 64
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class Calculator(Tool):
    """Answers with the value of a sum; takes the arguments of `Tool`."""

    def __init__(
        self, begin: str = "<calc>", end: str = "</calc>", template: str = "{result}"
    ) -> None:
        super().__init__(begin, end, template)

    def result(self, call: str) -> str:
        return result_of(call)


def result_of(expression: str) -> str:
    """Return the value of a sum, or an error in words; nothing of it is run as a program."""
    if len(expression) > _LONGEST:
        return f"error: more than {_LONGEST} characters"
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        if isinstance(value, int) and abs(value) >= 10**_LONGEST:
            return "error: the result is too long"
    except ZeroDivisionError:
        return "error: division by zero"
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError, TypeError):
        return "error: not a sum"
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return "error: not a sum"
    shown = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return shown if len(shown) <= _LONGEST else "error: the result is too long"


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        if isinstance(node.value, bool):
            raise ValueError("a truth value")
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and (
            abs(right) > _LARGEST_POWER or abs(left) > 10**_LARGEST_POWER
        ):
            raise OverflowError
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    raise ValueError(ast.dump(node))
