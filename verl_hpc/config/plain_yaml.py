"""YAML to plain values and back, by version 1.2: `010` is ten, `1:30` and `no` are texts.

PyYAML reads version 1.1, where they are 8, 90 and false, and takes the last of two equal keys.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

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

    def construct_document(self, node: yaml.Node) -> Any:
        # Not in pieces, as PyYAML does it: a value that holds itself is then an error.
        return self.construct_object(node, deep=True)

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
            if node.tag == _FLOAT:
                return float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
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
        ValueError: not YAML, or not of that kind; equal keys; a value that holds itself; a text
            that is too deep. The message says where.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("too many levels of lists and mappings") from None
    except (KeyError, TypeError, OverflowError, ValueError) as error:
        raise ValueError(f"a value of an impossible kind ({error})") from None


def write_yaml(values: Any) -> str:
    """`values` as a text that `read_yaml`, and readers of version 1.1, read back."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


def _wrong(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:50]}...")
