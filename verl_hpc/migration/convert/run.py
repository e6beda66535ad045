"""trainer.* and global_profiler.*: how long a run is, what it leaves behind, and where it runs."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from verl_hpc.migration.row import PROFILERS, Draft
from verl_hpc.migration.table import known, note
from verl_hpc.migration.values import Refused, Values

_KEEPS_ALL = 1_000_000


def name(values: Values, draft: Draft) -> None:
    """The run's name and the directory of its run directory, which is in runs/ where none is given,
    so that `status` and `list` see the run. Runs of two projects may share an experiment's name,
    and neither may go on from the other's step: the project's name, where it is given, is a part
    of the run's."""
    keys, place = ["trainer.experiment_name", "trainer.project_name"], "trainer.default_local_dir"
    label, project = map(values.text, keys)
    whole = f"{project}-{label}" if keys[1] in values else label
    path = PurePosixPath("runs", whole.replace("/", "-"))
    if place in values:
        keys, path = [place], PurePosixPath(values.text(place))
    else:
        draft.note(place, note("in_runs", place=f"checkpoints/{project}/{label}"))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name).lstrip("-._") or "run"
    if name != path.name:
        draft.note(keys[0], f"a run's name has letters, digits, '.', '_' and '-': {name}")
    draft.put("name", name, *keys)
    draft.put("directory", str(path.parent), *keys)


def length(values: Values, draft: Draft) -> None:
    """Steps, or epochs where no number of steps is given."""
    steps, epochs = "trainer.total_training_steps", "trainer.total_epochs"
    if values[steps] is None:
        draft.put("epochs", values[epochs], epochs)
        return
    draft.put("steps", values[steps], steps)
    if epochs in values:
        draft.note(epochs, f"{steps} decides; verl also ends when the epochs are over")


def keep(values: Values, draft: Draft) -> None:
    """Checkpoints that are kept."""
    key = "trainer.max_actor_ckpt_to_keep"
    number = values[key]
    draft.put("checkpoint.keep", _KEEPS_ALL if number is None else number, key)
    if number is None:
        draft.note(key, f"null keeps every step: checkpoint.keep = {_KEEPS_ALL}")


def world(values: Values, draft: Draft) -> None:
    """Ranks, and copies of the model; read when the layout is known."""
    nodes, gpus = "trainer.nnodes", "trainer.n_gpus_per_node"
    if nodes not in values and gpus not in values:
        return
    draft.ranks = values.whole(nodes) * values.whole(gpus)
    size = draft.settings
    names = (f"parallel.{name}_parallel" for name in ("tensor", "pipeline", "context"))
    shares = [size.get(name, 1) for name in names]
    if not all(type(share) is int and share > 0 for share in shares):
        return  # which settings of that value refuse themselves
    replica = shares[0] * shares[1] * shares[2]
    if draft.ranks % replica:
        why = note("no_whole_replica", ranks=draft.ranks, replica=replica)
        raise Refused(gpus if gpus in values else nodes, why, "another size of the layout")
    draft.put("parallel.data_parallel", draft.ranks // replica, nodes, gpus)


def generations(values: Values, draft: Draft) -> None:
    """Whether answers of evaluations are kept."""
    count, directory = "trainer.log_val_generations", "trainer.validation_data_dir"
    if not values[count] and values[directory] is None:
        return
    draft.put("evaluation.save_generations", True, count, directory)
    for key in (count, directory):
        if key in values:
            draft.note(key, "all answers are kept, in evaluations/ of the run directory")


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


_GLOBAL = "global_profiler"
_PROFILE = "runtime.profile"
_TOOLS = ("torch", "torch_memory", "npu")
_CONTENTS = ("cpu", "cuda", "memory")


def profile(values: Values, draft: Draft) -> None:
    """verl traces a model's workers in a worker group; we trace all that a rank does in a step."""
    steps, tool = f"{_GLOBAL}.steps", f"{_GLOBAL}.tool"
    traced = [one for one in PROFILERS if values.flag(f"{one}.enable") and values[f"{one}.tool"]]
    if values[steps] is None or not traced:
        return
    for section in traced:
        key = f"{section}.tool"
        if values[key] not in _TOOLS:
            named, why = key if key in values else tool, note("profiler", tool=values[key])
            raise Refused(named, why, f"{_PROFILE}, or the tool around srun")
    keys = [f"{one}.{name}" for one in traced for name in ("enable", "tool", "tool_config.torch")]
    draft.put(f"{_PROFILE}.steps", _numbers(values, steps), steps, tool, *keys)
    ranks = {rank for section in traced for rank in _traced_ranks(values, section)}
    draft.put(f"{_PROFILE}.ranks", sorted(ranks), *(f"{one}.ranks" for one in traced))
    memory = [_has_memory(values, section) for section in traced]
    draft.put(f"{_PROFILE}.memory", any(memory), tool)
    if any(values[f"{section}.tool"] == "npu" for section in traced):
        draft.note(tool, "npu is PyTorch's profiler of NPUs; here it traces GPUs and CPUs")
    draft.note(steps, "a trace has all that a rank does in a step, whichever models are enabled")


def _traced_ranks(values: Values, section: str) -> list[int]:
    key, nodes, gpus = f"{section}.all_ranks", "trainer.nnodes", "trainer.n_gpus_per_node"
    if not values.flag(key):
        return _numbers(values, f"{section}.ranks") or [0]
    if nodes not in values and gpus not in values:
        raise Refused(key, f"how many there are is not said; give {gpus}", f"{_PROFILE}.ranks")
    return list(range(values.whole(nodes) * values.whole(gpus)))


def _has_memory(values: Values, section: str) -> bool:
    key = f"{section}.tool_config.torch.contents"
    contents = values[key] or []
    if not isinstance(contents, list) or any(one not in _CONTENTS for one in contents):
        raise Refused(key, f"expected some of {', '.join(_CONTENTS)}", _PROFILE)
    return "memory" in contents or values[f"{section}.tool"] == "torch_memory"


def _numbers(values: Values, key: str) -> list[int]:
    found: Any = values[key]
    if not isinstance(found, list) or any(type(number) is not int for number in found):
        raise Refused(key, "expected a list of whole numbers", _PROFILE)
    return list(dict.fromkeys(found))
