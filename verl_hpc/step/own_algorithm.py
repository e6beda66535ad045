"""An advantage estimator, a policy loss or a loss of pairs in a file of the user's."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from verl_hpc.config.explain import explain
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.user_code import load_class
from verl_hpc.section import Section, is_own

S = TypeVar("S", bound=Section)


def loaded(setting: str, section: S, base: type[S], import_timeout_s: float) -> S:
    """The user's section that a setting names by path/file.py:Name, with the settings given beside
    the name; a section of the package as it is.

    Args:
        setting: of the section, such as algorithm.loss.
        section: the setting's value.
        base: what the user's class is a kind of.
        import_timeout_s: longest that importing the file may take.

    Raises:
        ConfigError: the file cannot be loaded, does not have such a class, or the class does not
            accept the settings.
    """
    given = section.model_dump()
    name = given["name"]
    if not is_own(name):
        return section
    found = load_class(name, base, import_timeout_s, f"{setting}.name", ConfigError)
    try:
        return found.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"{setting}.name = {name}:\n{explain(error, found)}") from None
