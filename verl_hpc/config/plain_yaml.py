"""YAML to plain values and back, by version 1.2: `010` is ten, `1:30` and `no` are texts.

PyYAML reads version 1.1, where they are 8, 90 and false, and takes the last of two equal keys.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_MOST_NODES = 100_000
"""Most values of a text with its aliases written out: a few aliases can expand to billions."""
DEEPEST = 50
"""Most levels of lists and mappings inside each other."""
_LONGEST_NUMBER = 400
"""Most characters of a number; the largest float has 309 digits."""
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_NULL, _BOOL, _INT, _FLOAT, _STR, _, _ = _TAGS = [f"tag:yaml.org,2002:{kind}" for kind in _KINDS]

# The core schema of YAML 1.2 (section 10.3.2), and the merge key of version 1.1.
_TYPES = (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        _FLOAT,
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("tag:yaml.org,2002:merge", r"<<", ["<"]),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}
    yaml_constructors = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (*_TAGS, None)}

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _measure(node, {})
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise _wrong(key, f"{_short(key.value)} is given twice")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return node

    def number(self, node: yaml.ScalarNode) -> int | float:
        text = self.construct_scalar(node)
        try:
            if len(text) > _LONGEST_NUMBER:
                raise ValueError
            if node.tag == _FLOAT:
                return float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))
            value = int(text, 0 if text[:2] in ("0o", "0x") else 10)
            if len(str(value)) > _LONGEST_NUMBER:  # fewer hexadecimal digits give as many
                raise ValueError
            return value
        except ValueError:
            raise _wrong(node, f"{_short(text)} is not a number a setting can have") from None

    def text(self, node: yaml.ScalarNode) -> str:
        text = self.construct_scalar(node)
        if re.search("[\0\ud800-\udfff]", text):
            raise _wrong(node, f"{_short(text)} has a character that no file can hold")
        return text


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes what either version would take for more than text; libyaml writes it, where PyYAML has
    that, in a tenth of the time."""


for _tag, _pattern, _first in _TYPES:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)
    _Dumper.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor(_INT, _Loader.number)
_Loader.add_constructor(_FLOAT, _Loader.number)
_Loader.add_constructor(_STR, _Loader.text)


def read_yaml(text: str) -> Any:
    """Plain values: None, bool, int, float, str, list, dict.

    Raises:
        ValueError: not YAML, or not of that kind; equal keys; a number of hundreds of digits; a
            text that is too deep, or too large once its aliases are written out. The message says
            where.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError(f"more than {DEEPEST} levels") from None
    except (KeyError, TypeError, OverflowError, ValueError) as error:
        raise ValueError(f"a value of an impossible kind ({error})") from None


def depth(value: Any) -> int:
    """Levels of lists and mappings inside each other, and one for what they hold; `read_yaml` takes
    `DEEPEST`."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, parts), default=0)


def write_yaml(values: Any) -> str:
    """`values` as a text that `read_yaml`, and readers of version 1.1, read back."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Count the values and the levels of a node with its aliases written out."""
    if id(node) not in known:
        known[id(node)] = None
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        sizes = [_measure(part, known) for part in parts]
        count = 1 + sum(part for part, _ in sizes)
        levels = 1 + max((part for _, part in sizes), default=0)
        if count > _MOST_NODES or levels > DEEPEST:
            raise _wrong(node, f"more than {DEEPEST} levels or {_MOST_NODES} values")
        known[id(node)] = count, levels
    measured = known[id(node)]
    if measured is None:
        raise _wrong(node, "a value holds itself")
    return measured


def _wrong(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:50]}...")
