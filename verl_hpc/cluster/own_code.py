"""What a Python file of the user's defines, without running it."""

from __future__ import annotations

import ast
from pathlib import Path

from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import ConfigError

_MAY_BE_ANY = {"*", "__getattr__"}
"""Names of a module that gets others where it runs."""


def check_defines(setting: str, file: Path, name: str) -> None:
    """Look for a name at a file's top level.

    Args:
        setting: that asks for it, and its value, for messages.

    Raises:
        ConfigError: the file cannot be read, is not Python, or does not define the name.
    """
    try:
        own, imported = _names(ast.parse(file.read_bytes(), file.name))
    except OSError as error:
        raise ConfigError(f"{setting}: {file} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{setting}: {file} is not Python: {error}") from error
    if name in own | imported or _MAY_BE_ANY & (own | imported):
        return
    public = sorted(n for n in own if n[0] != "_")
    hint = near_or_all(name, public, "it defines") if public else "it defines nothing"
    raise ConfigError(f"{setting}: {file} defines no {name!r}; {hint}")


def _names(module: ast.Module) -> tuple[set[str], set[str]]:
    """Names that a module defines, and those that it imports, also below if, try and with."""
    own, imported = set[str](), set[str]()
    todo: list[ast.AST] = [module]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        else:
            todo += ast.iter_child_nodes(node)
    return own, imported
