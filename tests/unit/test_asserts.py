"""Asserts only look: `python -O` leaves them out."""

import ast
from pathlib import Path

import verl_hpc

ONLY_LOOK = {
    *("all", "any", "isinstance", "len", "list", "set", "sorted"),
    *("dist.get_world_size", "row_major_strides", "tensor.is_contiguous"),
    *("self._metrics.keys", "self._metrics.keys().isdisjoint"),
}


def test_an_assert_calls_nothing_that_does_something():
    found = set()
    for path in Path(verl_hpc.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                calls = (n for n in ast.walk(node.test) if isinstance(n, ast.Call))
                found |= {(path.name, ast.unparse(call.func)) for call in calls}
    assert len(found) > 3
    assert [one for one in sorted(found) if one[1] not in ONLY_LOOK] == []
