"""trainer.logger: where metrics go besides the run's own directory."""

from __future__ import annotations

import re

from verl_hpc.migration.row import Draft
from verl_hpc.migration.values import Refused, Values

_TRACKERS = "metrics.* (docs/observability.md); metrics.jsonl is always written"
PROJECTS = {
    "wandb": "metrics.wandb.project",
    "mlflow": "metrics.mlflow.experiment",
    "swanlab": "metrics.swanlab.project",
}
"""Trackers that put runs into projects, and where theirs is said."""
_KNOWN = ("console", "file", "tensorboard", *PROJECTS)
_UPLOADS = {
    "wandb": "an offline run, which needs no network: `python -m verl_hpc sync RUN` uploads it",
    "swanlab": "an offline run, which needs no network: `swanlab sync` uploads it",
}


def loggers(values: Values, draft: Draft) -> None:
    """Trackers, and their projects."""
    key = "trainer.logger"
    chosen = values[key]
    chosen = chosen if isinstance(chosen, list) else [chosen]
    if key not in values:
        draft.note(
            key,
            "verl's default is [console, wandb]; wandb, whose package may be missing, only if it "
            "is given",
        )
        return
    unknown = [name for name in chosen if name not in _KNOWN]
    if unknown:
        why = f"there is no tracker {unknown[0]} here, but {', '.join(_KNOWN)}"
        raise Refused(key, why, _TRACKERS)
    draft.put("metrics.terminal", "auto" if "console" in chosen else "off", key)
    draft.put("metrics.tensorboard", "tensorboard" in chosen, key)
    _projects(values, draft, [name for name in PROJECTS if name in chosen])
    told = [text for name, text in _UPLOADS.items() if name in chosen]
    if told:
        draft.note(key, "; ".join(told))


def _projects(values: Values, draft: Draft, trackers: list[str]) -> None:
    key = "trainer.project_name"
    label = re.sub(r"[^A-Za-z0-9 ._-]+", "-", values.text(key)).lstrip(" ._-")[:128] or "verl"
    for name in trackers:
        draft.put(PROJECTS[name], label, "trainer.logger", key)
    if trackers and label != values[key]:
        draft.note(key, f"a project has letters, digits, ' ', '.', '_' and '-': {label}")
