"""The values of a verl command line: those that are given, over verl's defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_hpc.config.explain import shown
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.migration.reference import Form, reference

_SELECT = re.compile(r"\$\{oc\.select:([^,{}]+)(?:,(.*))?\}")
_RESOLVER = re.compile(r"\$\{[^{}]*:[^{}]*\}?")
"""A resolver of OmegaConf, which reads the environment, the time, or code."""
_REFERENCE = re.compile(r"\$\{([^:{}]+)\}")


class Refused(Exception):  # noqa: N818 (a verdict; no user meets it)
    """A key that cannot be honoured; `translate` gathers all of them."""

    def __init__(self, key: str, why: str, near: str = "") -> None:
        super().__init__(key, why, near)
        self.key, self.why = key, f"{why}; nearest of ours: {near}" if near else why

    def __str__(self) -> str:
        return f"{self.key}: {self.why}"


@dataclass(frozen=True)
class Values:
    """What verl would read."""

    given: Mapping[str, Any]
    """Values by key, as the command line or file has them."""
    form: Form
    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ours that are given beside verl's keys, by dotted name."""

    def __getitem__(self, key: str) -> Any:
        """The value that counts: the one that is given, or else verl's default, in which other keys
        are looked up."""
        return self._of(key, ())

    def __contains__(self, key: str) -> bool:
        """Whether it is given."""
        return key in self.given

    def default(self, key: str) -> Any:
        """verl's default, interpolations replaced."""
        return self._default(key, (key,))

    def _of(self, key: str, above: tuple[str, ...]) -> Any:
        """A value that the keys above refer to.

        Raises:
            Refused: it refers to itself.
        """
        if key in above:
            around = " -> ".join([*above[above.index(key) :], key])
            raise Refused(key, f"refers to itself: {around}")
        if key in self.given:
            return self._resolved(key, self.given[key], (*above, key))
        return self._default(key, (*above, key))

    def _default(self, key: str, above: tuple[str, ...]) -> Any:
        forms = reference().forms
        if key in forms[self.form]:
            found = forms[self.form][key]
        else:  # also keys that only the other form has
            found = next((keys[key] for keys in forms.values() if key in keys), None)
        return self._resolved(key, found, above)

    def _resolved(self, key: str, value: Any, above: tuple[str, ...]) -> Any:
        """With other keys' values in the place of interpolations.

        Raises:
            Refused: an interpolation is not of a key.
        """
        if isinstance(value, list):
            return [self._resolved(key, element, above) for element in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        select = _SELECT.fullmatch(value)
        if select:
            other, otherwise = _absolute(key, select[1].strip()), (select[2] or "null").strip()
            if other in self.given or other in reference():
                return self._of(other, above)
            plain = read_yaml(otherwise) if "${" not in otherwise else otherwise
            return self._resolved(key, plain, above)
        whole = _REFERENCE.fullmatch(value)
        if whole:
            return self._of(_absolute(key, whole[1]), above)
        computed = _RESOLVER.search(value)
        if computed:
            raise Refused(key, f"= {value}: {computed[0]} is not computed here; write its value")
        return _REFERENCE.sub(lambda it: self._part(_absolute(key, it[1]), above), value)

    def _part(self, key: str, above: tuple[str, ...]) -> str:
        """A value within the text of another key."""
        return _as_text(key, self._of(key, above))

    def whole(self, key: str, least: int = 1) -> int:
        """A whole number.

        Raises:
            Refused: it is something else.
        """
        value = self[key]
        if type(value) is not int or value < least:
            raise Refused(key, f"expected a whole number of at least {least}")
        return value

    def number(self, key: str) -> float:
        """A number.

        Raises:
            Refused: it is something else.
        """
        value = self[key]
        if type(value) not in (int, float):
            raise Refused(key, "expected a number")
        return float(value)

    def word(self, key: str) -> str:
        """Return a value of any type as text, to be looked up among known words."""
        return str(self[key])

    def text(self, key: str) -> str:
        """A text, or a number that is meant as one.

        Raises:
            Refused: it is null, a list or a section.
        """
        return _as_text(key, self[key])

    def path(self, key: str) -> str:
        """A path with ~ written out, or a model's name.

        Raises:
            Refused: as `text`.
        """
        return at_home(key, self.text(key))

    def flag(self, key: str) -> bool:
        """true or false.

        Raises:
            Refused: it is something else.
        """
        value = self[key]
        if type(value) is not bool:
            raise Refused(key, "expected true or false")
        return value

    def below(self, section: str) -> dict[str, Any]:
        """What is given below a section, by the rest of its key; a mapping that is given as the
        section's value counts, too.

        Raises:
            Refused: the section's value is something else.
        """
        given = {
            k[len(section) + 1 :]: v for k, v in self.given.items() if k.startswith(f"{section}.")
        }
        whole = self.given.get(section)
        if whole is None:
            return given
        if not isinstance(whole, Mapping):
            raise Refused(section, f"= {shown(whole)}; expected a section, such as {{name: value}}")
        return {**whole, **given}


def at_home(key: str, path: str) -> str:
    """A path with ~ written out.

    Raises:
        Refused: there is no such user here.
    """
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        user = path.partition("/")[0]
        raise Refused(key, f"= {path}: {user} has no home directory here; write it out") from None


def _as_text(key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise Refused(key, f"= {shown(value)}; expected a text")
    return str(value)


def _absolute(key: str, name: str) -> str:
    """The key that a relative name, `.name` beside `key`, means."""
    return f"{key.rpartition('.')[0]}{name}" if name.startswith(".") else name
