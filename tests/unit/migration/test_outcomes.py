"""Command lines of verl, and what becomes of them."""

from pathlib import Path

from tests.unit.migration.cases import WORDS
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.errors import ConfigError
from verl_hpc.migration.translate import migrate

OUTCOMES = read_yaml(Path(__file__).with_name("outcomes.yaml").read_text(encoding="utf-8"))
_NONE = object()


def at(tree, name):
    """A value by its dotted name; _NONE below what is not there."""
    for part in name.split("."):
        tree = tree[part] if isinstance(tree, dict) and part in tree else _NONE
    return tree


def problems(words, settings=(), config=(), refused=(), notes=(), silent=(), error=()):
    """What is other than expected."""
    try:
        run = migrate([*WORDS, *words])
        resolved = {} if refused else run.config().model_dump(mode="json")
    except ConfigError as raised:
        missing = [part for part in error if part not in str(raised)]
        return missing if error else [str(raised)]
    texts = {one.key: str(one) for one in run.refused}
    wrong = ["no error"] if error else []
    wrong += [name for name in dict(settings) if run.settings.get(name) != settings[name]]
    wrong += [(name, at(resolved, name)) for name in config if at(resolved, name) != config[name]]
    wrong += [texts] if texts.keys() != dict(refused).keys() else []
    wrong += [key for key in refused if refused[key] not in texts.get(key, "")]
    wrong += [key for key in notes if notes[key] not in run.notes.get(key, "")]
    return wrong + [key for key in silent if key in run.notes]


def test_outcomes():
    wrong = [
        (name, outcome["words"], found)
        for name, outcomes in OUTCOMES.items()
        for outcome in outcomes
        if (found := problems(**outcome))
    ]
    assert wrong == []
