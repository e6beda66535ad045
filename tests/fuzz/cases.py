"""What a case of a real run is made of: a directory with a run that works, and what is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.jobs.launch import write_config
from verl_hpc.config.tree import put

PROBLEMS = [
    {"prompt": f"{n} + 7 =", "data_source": "sums", "reward_model": {"ground_truth": str(n + 7)}}
    for n in range(20)
]
SCORE = "(sum(map(ord, solution_str)) % 5) / 4"
REWARD = f"""
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {SCORE}
"""

MOST_BYTES = 6000

End = Literal["error", "same", "same or error", "either", "gone"]
"""A named error; the weights of the undisturbed run; one of these two, where a choice is legal; a
named error or other weights; a process that is gone, which its parent tells."""


@dataclass(frozen=True)
class Case:
    """A change to a run, and how it must end."""

    name: str
    change: Callable[[Place], None]
    end: End = "error"
    most_bytes: int = MOST_BYTES
    """The most that the run may print."""


@dataclass
class Place:
    """The directory of a case: model/, problems.jsonl, reward.py, and the settings."""

    directory: Path
    tree: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        return self.directory / "model"

    def set(self, name: str, value: Any) -> None:
        put(self.tree, name, value)


def prepare(case: Case | None, directory: Path, model: Path) -> Path:
    """Make the directory of a case, or of the undisturbed run."""
    directory.mkdir()
    shutil.copytree(model, directory / "model")
    (directory / "problems.jsonl").write_bytes(rows(*PROBLEMS))
    (directory / "reward.py").write_text(REWARD)
    tree = {
        "name": "run",
        "recipe": "rl",
        "steps": 2,
        "model": {"path": "model", "dtype": "float32"},
        "optimizer": {"lr": 1e-3},
        "batch": {"size": 2},
        "rollout": {
            "engine": "hf", "num_samples": 2, "max_prompt_tokens": 96, "max_response_tokens": 4,
        },
        "data": {"train": {"kind": "files", "paths": ["problems.jsonl"]}, "shuffle": False},
        "reward": {"function": "reward.py:compute_score", "timeout_s": 3, "import_timeout_s": 5},
        "metrics": {"terminal": "off", "report": False},
        "runtime": {"collective_timeout_s": 60},
    }  # fmt: skip
    place = Place(directory, tree)
    if case is not None:
        case.change(place)
    write_config(directory / "run.yaml", place.tree)
    return directory


def rows(*values: Any) -> bytes:
    """A file of JSON lines."""
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def set_field(name: str, value: Any) -> Callable[[Place], None]:
    """A change: this setting has another value."""
    return lambda place: place.set(name, value)


def replace_file(name: str, content: bytes | None) -> Callable[[Place], None]:
    """A change: this file has another content, or is missing."""

    def change(place: Place) -> None:
        file = place.directory / name
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)

    return change


def damage_file(name: str, damage: Callable[[bytes], bytes]) -> Callable[[Place], None]:
    """A change: this file has what `damage` makes of its content."""

    def change(place: Place) -> None:
        file = place.directory / name
        file.write_bytes(damage(file.read_bytes()))

    return change


def edit_json(file: Path, **changes: Any) -> None:
    """Set fields of a JSON file; `...` removes one."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))
