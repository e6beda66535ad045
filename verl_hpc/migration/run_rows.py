"""trainer.*: how long a run is, what it leaves behind, and where it runs."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from verl_hpc.migration.row import (
    RANKS,
    Draft,
    Row,
    all_fixed,
    any_value,
    fixed,
    same,
    to,
    together,
)
from verl_hpc.migration.tracker_rows import PROJECTS
from verl_hpc.migration.tracker_rows import ROWS as TRACKERS
from verl_hpc.migration.values import Refused, Values

_KEEPS_ALL = 1_000_000
_HIDES_GPUS = "CUDA_VISIBLE_DEVICES= in the environment, which hides the GPUs"
_RAY = "there is no Ray here: ranks are started by srun or mpiexec"


def _name(values: Values, draft: Draft) -> None:
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


def _length(values: Values, draft: Draft) -> None:
    steps, epochs = "trainer.total_training_steps", "trainer.total_epochs"
    if values[steps] is None:
        draft.put("epochs", values[epochs], epochs)
        return
    draft.put("steps", values[steps], steps)
    if epochs in values:
        draft.note(epochs, f"{steps} decides; verl also ends when the epochs are over")


def _resume(values: Values, draft: Draft) -> None:
    key = "trainer.resume_mode"
    words = {"auto": "auto", "disable": "never"}
    if values.word(key) not in words:
        raise Refused(
            key,
            "a run continues from its own directory; another run's step is where it starts from",
            "model.path: DIRECTORY/NAME/checkpoints/latest, or checkpoint.resume: must",
        )
    draft.put("checkpoint.resume", words[values.word(key)], key)


def _keep(values: Values, draft: Draft) -> None:
    actor, critic = "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"
    number = values[actor]
    if critic in values and values[critic] is not None and not same(values[critic], number):
        raise Refused(critic, "a saved step has all models in one directory", actor)
    draft.put("checkpoint.keep", _KEEPS_ALL if number is None else number, actor)
    if number is None:
        draft.note(actor, f"null keeps every step: checkpoint.keep = {_KEEPS_ALL}")


def _every(key: str, ours: str) -> Row:
    """verl's -1 is our 0."""

    def never(value: Any) -> Any:
        return 0 if value in (-1, 0, None) else value

    return to(key, ours, "-1 becomes 0; the last step counts besides", change=never)


def _world(values: Values, draft: Draft) -> None:
    nodes, gpus = "trainer.nnodes", "trainer.n_gpus_per_node"
    if nodes not in values and gpus not in values:
        return
    draft.ranks = values.whole(nodes) * values.whole(gpus)
    size = draft.settings
    shares = [
        size.get(f"parallel.{name}_parallel", 1) for name in ("tensor", "pipeline", "context")
    ]
    if not all(type(share) is int and share > 0 for share in shares):
        return  # which settings of that value refuse themselves
    replica = shares[0] * shares[1] * shares[2]
    if draft.ranks % replica:
        raise Refused(
            gpus if gpus in values else nodes,
            f"{draft.ranks} ranks (nnodes x n_gpus_per_node) are no multiple of the {replica} that "
            "tensor, pipeline and context parallel ranks make",
            "another size of the layout",
        )
    draft.put("parallel.data_parallel", draft.ranks // replica, nodes, gpus)


def _generations(values: Values, draft: Draft) -> None:
    count, directory = "trainer.log_val_generations", "trainer.validation_data_dir"
    if not values[count] and values[directory] is None:
        return
    draft.put("evaluation.save_generations", True, count, directory)
    for key in (count, directory):
        if key in values:
            draft.note(key, "all answers are kept, in evaluations/ of the run directory")


ROWS = [
    *together(
        _name,
        {
            "trainer.project_name": (
                f"directory {' '.join(PROJECTS.values())}",
                "the run directory is checkpoints/PROJECT/NAME; and of trainer.logger's trackers",
            ),
            "trainer.experiment_name": ("name", "other characters than [A-Za-z0-9._-] become -"),
            "trainer.default_local_dir": ("directory name", "its parent, and its last part"),
        },
    ),
    *together(
        _length,
        {
            "trainer.total_epochs": (
                "epochs",
                "unless total_training_steps is given; no row is left out",
            ),
            "trainer.total_training_steps": ("steps", ""),
        },
    ),
    *TRACKERS,
    *together(
        _resume,
        {"trainer.resume_mode": ("checkpoint.resume", "disable becomes never")},
    ),
    *together(
        _keep,
        {
            "trainer.max_actor_ckpt_to_keep": ("checkpoint.keep", f"null becomes {_KEEPS_ALL}"),
        },
    ),
    *together(
        _keep,
        {"trainer.max_critic_ckpt_to_keep": ("checkpoint.keep", "must be the actor's")},
        "agrees",
    ),
    _every("trainer.save_freq", "checkpoint.every"),
    _every("trainer.test_freq", "evaluation.every"),
    to("trainer.val_before_train", "evaluation.at_start"),
    *together(
        _generations,
        {
            "trainer.log_val_generations": ("evaluation.save_generations", "above 0: all are kept"),
            "trainer.validation_data_dir": (
                "evaluation.save_generations",
                "kept in evaluations/ of the run directory",
            ),
        },
    ),
    fixed(
        "trainer.rollout_data_dir",
        "some responses of some steps are always kept, in samples/ of the run directory",
        "python -m verl_hpc generations",
    ),
    fixed(
        "trainer.val_only",
        "a run takes at least one step",
        "evaluation.at_start: true, steps: 1 and optimizer.lr: 0",
    ),
    fixed("trainer.resume_from_path", "as resume_mode", "model.path"),
    *any_value("trainer.balance_batch", "lengths are always balanced over ranks"),
    fixed(
        "trainer.esi_redundant_time",
        "a run saves before its time is up by itself",
        "a site profile's margins (docs/preemption.md)",
    ),
    fixed("trainer.default_hdfs_dir", "checkpoints go to the run directory", "directory"),
    fixed(
        "trainer.del_local_ckpt_after_load",
        "a checkpoint is never deleted while it is the newest",
        "checkpoint.keep",
    ),
    fixed("trainer.ray_wait_register_center_timeout", _RAY, "runtime.collective_timeout_s"),
    fixed(
        "trainer.device", "ranks take the GPUs that there are, or else CPUs; no NPUs", _HIDES_GPUS
    ),
    fixed(
        "trainer.use_v1",
        "verl's trainers differ in divisors of the loss alone, which notes of loss_agg_mode and "
        "rollout_rs tell",
        "algorithm.aggregation",
        also=(False,),
    ),
    fixed(
        "trainer.v1.trainer_mode",
        "generation ahead of training is said by how many steps, and on which ranks",
        "rollout.staleness, placement.rollout (docs/asynchronous.md)",
    ),
    fixed("trainer.v1.*", "as trainer.v1.trainer_mode", "rollout.staleness, batch.refill_rounds"),
]
WORLD = together(
    _world,
    {
        "trainer.nnodes": (f"{RANKS} parallel.data_parallel", "nnodes x n_gpus_per_node ranks"),
        "trainer.n_gpus_per_node": (
            f"{RANKS} parallel.data_parallel",
            "nnodes x n_gpus_per_node ranks",
        ),
    },
)
"""Read when the layout is known."""
RAY = [
    *all_fixed(
        "ray_kwargs.ray_init.num_cpus ray_kwargs.ray_init.runtime_env.py_executable "
        "ray_kwargs.timeline_json_file",
        _RAY,
        "python -m verl_hpc submit, or srun",
    ),
    fixed("ray_kwargs.*", _RAY, "python -m verl_hpc submit, or srun"),
]
