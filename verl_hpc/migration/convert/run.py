"""trainer.*: how long a run is, what it leaves behind, and where it runs."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from verl_hpc.migration.row import Draft
from verl_hpc.migration.table import note
from verl_hpc.migration.values import Refused, Values

_KEEPS_ALL = 1_000_000


def name(values: Values, draft: Draft) -> None:
    """The run's name and the directory of its run directory."""
    keys: tuple[str, ...] = ("trainer.project_name", "trainer.experiment_name")
    place = values.text("trainer.default_local_dir")
    if "trainer.default_local_dir" in values:
        keys = ("trainer.default_local_dir",)
    path = PurePosixPath(place)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name).lstrip("-._") or "run"
    if name != path.name:
        draft.note(keys[-1], f"a run's name has letters, digits, '.', '_' and '-': {name}")
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
