"""For every key that is honoured: a value that is not verl's default, and what it comes to."""

from dataclasses import dataclass, field
from pathlib import Path

from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.migration.reference import FORMS, reference

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
CORRECTION = "algorithm.rollout_correction"
BASE = {
    f"{MODEL}.path": "model",
    "data.train_files": "train.parquet",
    "data.val_files": "test.parquet",
    "trainer.total_training_steps": 10,
}
"""What every run needs."""
WORDS = (
    "data.train_files=a.parquet",
    "data.val_files=b.parquet",
    f"{MODEL}.path=m",
    "trainer.total_training_steps=10",
)
"""Return these settings as words of a command line."""


def forms_of(key):
    """Return which of verl's two trees have a key; where neither lists it, the one by its name."""
    forms = [form for form in FORMS if key in reference().forms[form]]
    return forms or ["megatron" if "megatron" in key else "fsdp"]


def other(value):
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    return {list: ["other"], dict: {"other": 1}}.get(type(value), "other")


@dataclass
class Case:
    key: str
    value: object
    ours: str
    expected: object = ...
    beside: dict = field(default_factory=dict)

    def __post_init__(self):
        self.expected = self.value if self.expected is ... else self.expected
        in_megatron = ".lora." in self.key or any(".megatron." in name for name in self.beside)
        self.forms = ["megatron"] if in_megatron else forms_of(self.key)


@dataclass
class Agreement:
    """A key that must agree with others: a value that does, and one that does not."""

    key: str
    value: object
    wrong: object
    beside: dict = field(default_factory=dict)


_READ = read_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
AGREEMENTS = [Agreement(**fields) for fields in _READ.pop("agreements")]
CASES = [Case(**fields) for group in _READ.values() for fields in group]
