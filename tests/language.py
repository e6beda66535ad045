"""Check that docstrings are sentences that stand alone, and that locals say what they hold.

`make lint` runs it: python -m tests.language DIRECTORY...
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FRAGMENT = re.compile(r"(Of|That|Whose|Which|The same|As|Beside|Behind|By)\b")
"""Begins a docstring whose subject is on another line."""
VAGUE = {"found"}
"""Names that say nothing about a value; a function this short may use them."""
SHORT = 10


def faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each fault in a module."""
    for node in ast.walk(tree):
        for line, docstring in _docstrings(node):
            if FRAGMENT.match(docstring):
                yield line, f"a docstring that does not stand alone: {docstring.splitlines()[0]}"
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno > SHORT:
            for name in ast.walk(node):
                is_set = isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                if is_set and name.id in VAGUE:
                    yield name.lineno, f"a name that does not say what it holds: {name.id}"


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the docstrings in a body with their lines, those of attributes included."""
    body = getattr(node, "body", None)
    for item in body if isinstance(body, list) else ():
        match item:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield item.lineno, text.strip()


def main(directories: list[str]) -> int:
    """Print all faults in the modules of these directories, and return 1 if there are any."""
    lines = [
        f"{path}:{number}: {text}"
        for directory in directories
        for path in sorted(Path(directory).rglob("*.py"))
        for number, text in sorted(faults(ast.parse(path.read_text())))
    ]
    print("\n".join(lines) or "All docstrings stand alone.")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
