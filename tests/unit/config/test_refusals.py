"""Settings that are refused with words that name them, and others like them that are taken."""

from pathlib import Path

import pytest

from tests.unit.config.trees import parse
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.errors import ConfigError

GROUPS = read_yaml(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))


def refusal(changes):
    """The error of the smallest run with these settings; empty if it is one."""
    try:
        parse(**{name.replace(".", "__"): value for name, value in changes.items()})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_refused_and_what_is_taken(group):
    over, wrong = GROUPS[group].get("over", {}), []
    for changes, *words in GROUPS[group]["refused"]:
        said = refusal(over | changes)
        if not said or any(word not in said for word in words) or "hunter2" in said:
            wrong.append((changes, words, said))
    taken = {str(changes): refusal(over | changes) for changes in GROUPS[group].get("taken", ())}
    assert (wrong, {changes: said for changes, said in taken.items() if said}) == ([], {})
