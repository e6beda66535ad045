"""Run a program in the sandbox. This file is never imported: its text is run there.

A program finds the names that judges import for it (`code_tests`) as if they were built in, so
that its own lines keep their numbers, and a name that it does not define is not found in it.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Sequence
    from typing import Any

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda found, several: found in several,
    "NotIn": lambda found, several: found not in several,
    "Sub": operator.sub,
}
_BY_IDENTITY = ("Is", "IsNot")
_METHODS = ("eq", "ne", "lt", "le", "gt", "ge", "sub", "rsub")
_EQUAL_TO_ALL = "unittest.mock"
"""Module of ANY, which equals everything."""
_IS_MADE_BY_PYTHON = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: set on classes of class statements and of some compiled modules."""
_loaded: dict[str, dict[str, Any]] = {}
"""Contents of modules before the program ran, by name."""
_NAME = "solution"
_COMPARE = "_verl_hpc_compare"


def run_program(program: str, preamble: dict[str, str]) -> None:
    """Run a program as a script."""
    _execute(program, preamble, "__main__")


def run_tests() -> None:
    """Run a program, then its tests or one call of it, as standard input says.

    The text of tests and the word that says that they have passed are in no file and no argument.
    The word comes last: a program that ends early does not say it.
    """
    # A program that reads its input needs neither json nor ast, which take as long to load as
    # short programs run.
    import json

    job = json.loads(sys.stdin.buffer.read())
    # What was read is a file that the program could read again.
    os.ftruncate(0, 0)
    for name in job.get("modules", ()):
        importlib.import_module(name)
    modules = [module for module in sys.modules.values() if isinstance(module, types.ModuleType)]
    kept = [(vars(module), dict(vars(module))) for module in modules]
    _loaded.update({module.__name__: values for module, (_, values) in zip(modules, kept)})  # noqa: B905
    names = _execute(job["program"], job["preamble"], _NAME)
    _put_back(kept)
    if "tests" in job:
        _test(job["tests"], names)
        result = True
    else:
        result = _call(job["function"], job["arguments"], names)
    _put_back(kept)
    sys.stdout.flush()
    said = json.dumps(result, default=lambda value: value.tolist())
    os.write(1, ("\n" + job["word"] + said).encode())


def _put_back(kept: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Undo a program's changes to functions that tests call."""
    for module, values in kept:
        module.update(values)


def _execute(program: str, preamble: dict[str, str], name: str) -> dict[str, Any]:
    try:
        code = compile(program, "solution.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        sys.exit(f"SyntaxError: {error}")
    # The limit of LiveCodeBench.
    sys.setrecursionlimit(50_000)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    module = types.ModuleType(name)
    names = vars(module)
    names["__builtins__"] = {**_preamble(preamble), **vars(builtins)}
    sys.modules[name] = module
    exec(code, names)  # noqa: S102
    return names


def _preamble(modules: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, path in modules.items():
        module = importlib.import_module(path)
        if name == path or hasattr(module, name):
            values[name] = module if name == path else getattr(module, name)
    return values


def _call(function: str, arguments: list[Any], names: dict[str, Any]) -> Any:
    target = names.get(function)
    if target is None:
        target = getattr(names["Solution"](), function)
    return target(*arguments)


def _test(tests: str, names: dict[str, Any]) -> None:
    import ast

    tree = ast.parse(tests)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    known = vars(builtins)
    # A program may not take the place of abs or all, unless that is what is tested.
    if any(name in names and name not in known for name in used):
        names = {name: value for name, value in names.items() if name not in known}
    names = {**names, "__builtins__": builtins, _COMPARE: _compare}
    code = compile(_guarded(tree), "tests.py", "exec", dont_inherit=True)
    exec(code, names)  # noqa: S102


def _guarded(tree: ast.Module) -> ast.Module:
    """Replace comparisons, and differences, with which approximate comparisons begin, by calls of
    `_compare`."""
    import ast

    def call(node: ast.expr, kinds: Sequence[ast.AST], values: list[ast.expr]) -> ast.Call:
        names: list[ast.expr] = [ast.Constant(type(kind).__name__) for kind in kinds]
        function = ast.Name(_COMPARE, ast.Load())
        guarded = ast.Call(function, [ast.Tuple(names, ast.Load()), *values], [])
        return ast.copy_location(guarded, node)

    class Guarded(ast.NodeTransformer):
        def visit_Compare(self, node: ast.Compare) -> ast.AST:
            self.generic_visit(node)
            return call(node, node.ops, [node.left, *node.comparators])

        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            self.generic_visit(node)
            is_difference = isinstance(node.op, ast.Sub)
            return call(node, [node.op], [node.left, node.right]) if is_difference else node

    Guarded().visit(tree)
    return ast.fix_missing_locations(tree)


def _compare(kinds: tuple[str, ...], *values: Any) -> Any:
    """Compute a chain of comparisons, or a difference. An object of the program's that implements
    the operation itself may only meet objects of its kind."""
    outcome: Any = True
    for kind, left, right in zip(kinds, values, values[1:]):  # noqa: B905
        by_program = kind not in _BY_IDENTITY and not (kind == "NotEq" and right is None)
        if by_program and _is_plain(left) != _is_plain(right):
            raise AssertionError("an object of the program's is compared with a value of the test")
        outcome = _OPERATIONS[kind](left, right)
        if len(kinds) > 1 and not outcome:
            return outcome
    return outcome


def _is_plain(value: Any) -> bool:
    """Whether a value, and all in it, is compared without code of the program's."""
    if not all(_is_trusted(type(value), f"__{name}__") for name in _METHODS):
        return False
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    return True


def _is_trusted(kind: type, name: str) -> bool:
    """Whether a method is the interpreter's, or that of a class of a library's: a class of the
    program's may have another one's method by this name, such as that of `!=` for `==`."""
    # A metaclass could say something else by the usual names.
    order, members, flags = (type.__dict__[n] for n in ("__mro__", "__dict__", "__flags__"))
    owner = next((c for c in order.__get__(kind) if name in members.__get__(c)), None)
    if owner is None or not flags.__get__(owner) & _IS_MADE_BY_PYTHON:
        return True
    method = members.__get__(owner)[name]
    if isinstance(method, types.WrapperDescriptorType):
        return method.__objclass__ is owner
    if not isinstance(method, types.FunctionType):
        return False
    module = method.__globals__.get("__name__")
    if module in (_NAME, _EQUAL_TO_ALL) or module not in sys.modules:
        return False
    if module in _loaded:
        return any(value is owner for value in _loaded[module].values())
    loaded = sys.modules[module]
    file = getattr(getattr(loaded, "__spec__", None), "origin", None)
    return vars(loaded) is method.__globals__ and method.__code__.co_filename == file
