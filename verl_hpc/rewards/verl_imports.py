"""Serve imports of verl in files of the user by `verl_scores` if verl is not installed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from verl_hpc.errors import RewardError, VerlHpcError
from verl_hpc.rewards.verl_scores import MODULES, PACKAGE

_ROOT = "verl"
_PARENTS = (_ROOT, "verl.utils")
_SAYS_MISSING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def answer_imports(path: Path, setting: str, error: type[VerlHpcError] = RewardError) -> None:
    """Check a file before it is imported, and provide what it imports of verl.

    Imports inside functions count as well. Those that the file can do without, and those for
    type checkers, may fail.

    Args:
        path: the file.
        setting: the setting that names it, for messages.
        error: type of error to raise.

    Raises:
        RewardError: or `error`: it imports parts of verl that are not provided.
    """
    imported = _imports(path)
    if not imported.imports or _is_installed():
        return
    for line, module, name in imported.needed:
        if not _there_is(module, name):
            what = f"{module}.{name}" if name else module
            raise error(
                f"{setting}: {path}, line {line} imports {what}, and verl is not installed; "
                f"verl_hpc has in its place {', '.join(_told())}. Copy what else is needed into "
                "the file, or install verl"
            )
    _provide()


class _Imports(ast.NodeVisitor):
    """Collects imports of verl: line, module, and the name imported from it."""

    def __init__(self) -> None:
        self.imports: list[tuple[int, str, str | None]] = []
        self.needed: list[tuple[int, str, str | None]] = []
        self._is_needed = True

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note(node.lineno, alias.name, None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names if node.module and not node.level else ():
            self._note(node.lineno, node.module or "", alias.name)

    def visit_Try(self, node: ast.Try) -> None:
        self._visit(node.body, any(map(_says_missing, node.handlers)))
        self._visit([*node.handlers, *node.orelse, *node.finalbody])

    def visit_If(self, node: ast.If) -> None:
        self._visit(node.body, "TYPE_CHECKING" in ast.dump(node.test))
        self._visit(node.orelse)

    def _note(self, line: int, module: str, name: str | None) -> None:
        if module.split(".")[0] == _ROOT:
            self.imports.append((line, module, name))
            self.needed += self.imports[-1:] if self._is_needed else []

    def _visit(self, nodes: Sequence[ast.AST], may_fail: bool = False) -> None:
        before = self._is_needed
        self._is_needed = before and not may_fail
        for node in nodes:
            self.visit(node)
        self._is_needed = before


def _imports(path: Path) -> _Imports:
    visitor = _Imports()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, OSError):
        # The import, which comes next, fails as well, and says it better.
        return visitor
    visitor.visit(tree)
    return visitor


def _says_missing(handler: ast.ExceptHandler) -> bool:
    """Whether a failed import is handled here."""
    if handler.type is None:
        return True
    return any(isinstance(n, ast.Name) and n.id in _SAYS_MISSING for n in ast.walk(handler.type))


def _is_installed() -> bool:
    """Whether verl is installed; a mere directory of that name, such as one for data, does not
    count."""
    spec = PathFinder.find_spec(_ROOT)
    return spec is not None and spec.origin is not None


def _there_is(module: str, name: str | None) -> bool:
    if f"{module}.{name}" in MODULES:
        return True
    return module in MODULES and (name in (None, "*") or name in MODULES[module])


def _told() -> Iterator[str]:
    for module, functions in MODULES.items():
        short = module.removeprefix(f"{PACKAGE}.")
        yield f"{short} ({', '.join(name for name in functions if name[0] != '_')})"


def _provide() -> None:
    for name in (*_PARENTS, *MODULES):
        if name in sys.modules:
            continue
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(MODULES.get(name, {}))
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
