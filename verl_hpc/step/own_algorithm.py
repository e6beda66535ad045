"""Load an advantage estimator, a policy loss or a loss of pairs from a user's file."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from verl_hpc.config.explain import explain
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.user_code import load_class
from verl_hpc.section import Section, is_own

S = TypeVar("S", bound=Section)


def loaded(setting: str, section: S, base: type[S], import_timeout_s: float) -> S:
    """Return the user's class that a setting names by path/file.py:Name, with the section's other
    settings; a section of the package is returned unchanged.

    Args:
        setting: key of the section, such as algorithm.loss.
        section: the setting's value.
        base: base class of the user's class.
        import_timeout_s: time limit for importing the file.

    Raises:
        ConfigError: the file cannot be loaded, does not have such a class, or the class does not
            accept the settings.
    """
    given = section.model_dump()
    name = given["name"]
    if not is_own(name):
        return section
    own_class = load_class(name, base, import_timeout_s, f"{setting}.name", ConfigError)
    try:
        return own_class.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"{setting}.name = {name}:\n{explain(error, own_class)}") from None
