"""Steps of a trainer in one process, in the format of all checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from verl_hpc.api.modules import config_of
from verl_hpc.api.process import temporary_directory
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.schema import LATEST, STATE, step_number
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.checkpoint.weights import hf_files
from verl_hpc.config.role import ACTOR, REFERENCE
from verl_hpc.errors import CheckpointError, ConfigError, ModelError
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.fingerprint import FIRST_WEIGHTS, SAME_AS_FIRST, TRAINED, changes
from verl_hpc.trainer.saves import save_parts
from verl_hpc.trainer.state import Progress, load_step_directory
from verl_hpc.transfer.checksum import Digest


def save_step(
    run: RunContext,
    progress: Progress,
    root: Path,
    actor: torch.nn.Module,
    tokenizer: Any,
    namespace: str | None,
    optimizer: bool = True,
    state: bool = True,
) -> Path:
    """Write a step directory below `root`; see `PPOTrainer.save_checkpoint`."""
    if state and not optimizer:
        raise ConfigError(
            "save_checkpoint: save_training_state without save_optimizer: training cannot go on "
            "without Adam's state; set both, or neither for weights alone"
        )
    for role in run.trained:
        for name, spec in role.trained_map.tensors.items():
            if not spec.shape:
                raise ModelError(
                    f"save_checkpoint: {name} of {role.name} has no dimensions, and tensors of a "
                    "step have some; give it the shape (1,)"
                )
    with temporary_directory(namespace) as scratch:
        for part in (config_of(actor), tokenizer):
            save = getattr(part, "save_pretrained", None)
            if callable(save):
                save(Path(scratch))
        run.hf_files = hf_files(Path(scratch))
        step = save_parts(run, progress, root, optimizer, state)
    short = root / f"step_{progress.step}"
    if short.name != step.name:
        short.unlink(missing_ok=True)
        short.symlink_to(step.name)
    return step


def fingerprint_of(run: RunContext) -> dict[str, str]:
    """Return what may not change unnoticed when training resumes: which roles are trained, and the
    weights that the KL divergence is taken from."""
    trained = {TRAINED: ", ".join(sorted(role.name for role in run.trained))}
    if REFERENCE not in run.roles:
        return trained
    digest = Digest()
    for _, tensor in sorted(run.roles[ACTOR].trained.weights.items()):
        digest.add(tensor.detach().cpu().contiguous())
    first = {FIRST_WEIGHTS: str(digest.found()), f"roles.{REFERENCE}.path": SAME_AS_FIRST}
    return trained | first


def load_step(run: RunContext, step: Path) -> Progress:
    """Fill a run from a step's directory.

    Raises:
        CheckpointError, ConfigError: it lacks the training state, or is of another trainer.
    """
    if not (step / STATE).is_file():
        raise CheckpointError(
            f"{step} has no training state; save with save_optimizer=True and "
            "save_training_state=True to go on from it, or give its weights to a new trainer"
        )
    differences = changes(Step(step, check_files=False).state.fingerprint, run.fingerprint)
    if differences:
        raise ConfigError(
            f"load_checkpoint: {step} is of another trainer: {'; '.join(differences)}. Give this "
            "one the models that the first step began with. Or go on from the actor's weights "
            f"alone, with a new optimizer: `python -m verl_hpc export --step {step} --out "
            "DIRECTORY`, and a new trainer of the model in DIRECTORY"
        )
    try:
        return load_step_directory(run, step)
    except ConfigError as error:
        raise ConfigError(
            f"load_checkpoint: {step} is of another trainer: give the one that goes on the models "
            f"that its first step began with ({error})"
        ) from None


def find_step(path: Path, namespace: str | None = None) -> Path:
    """Return a step's directory: `path` itself, or the newest one below it.

    Raises:
        CheckpointError: there is no step.
    """
    if step_number(path.resolve()) is not None and path.is_dir():
        return path.resolve()
    if path.name == LATEST and path.exists():
        return path.resolve()
    below = path / (namespace or "")
    steps = complete_steps(below)
    if not steps and path.name == namespace:  # its own directory, not the one above
        steps = complete_steps(path)
    if not steps:
        raise CheckpointError(
            f"load_checkpoint: {below} has no steps; give the directory that was given to "
            "save_checkpoint, or a step's"
        )
    return steps[0]
