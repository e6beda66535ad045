"""trainer.logger: where metrics go besides the run's own directory."""

from __future__ import annotations

import re

from verl_hpc.migration.row import Draft
from verl_hpc.migration.table import known, note
from verl_hpc.migration.values import Refused, Values

_TRACKERS = "metrics.* (docs/observability.md); metrics.jsonl is always written"
_PLAIN = ("console", "file", "tensorboard")


def loggers(values: Values, draft: Draft) -> None:
    """Trackers, and their projects."""
    key = "trainer.logger"
    chosen = values[key]
    chosen = chosen if isinstance(chosen, list) else [chosen]
    if key not in values:
        draft.note(key, note("no_tracker"))
        return
    projects = known(key).words
    trackers = (*_PLAIN, *projects)
    unknown = [name for name in chosen if name not in trackers]
    if unknown:
        why = f"there is no tracker {unknown[0]} here, but {', '.join(trackers)}"
        raise Refused(key, why, _TRACKERS)
    draft.put("metrics.terminal", "auto" if "console" in chosen else "off", key)
    draft.put("metrics.tensorboard", "tensorboard" in chosen, key)
    _put_projects(values, draft, [ours for name, ours in projects.items() if name in chosen])
    told = [note(name) for name in ("wandb", "swanlab") if name in chosen]
    if told:
        draft.note(key, "; ".join(told))


def _put_projects(values: Values, draft: Draft, settings: list[str]) -> None:
    key = "trainer.project_name"
    label = re.sub(r"[^A-Za-z0-9 ._-]+", "-", values.text(key)).lstrip(" ._-")[:128] or "verl"
    for setting in settings:
        draft.put(setting, label, "trainer.logger", key)
    if settings and label != values[key]:
        draft.note(key, f"a project has letters, digits, ' ', '.', '_' and '-': {label}")
