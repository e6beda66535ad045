"""Fingerprint of a run's inputs, compared when it is resumed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_hpc.checkpoint.weights import Weights
from verl_hpc.config.data import SourceConfig
from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.reward import RewardConfig
from verl_hpc.config.role import REFERENCE
from verl_hpc.config.run import RunConfig
from verl_hpc.data.fingerprint import fingerprint as fingerprint_of_data
from verl_hpc.data.fingerprint import of_file
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.runtime.control import Control
from verl_hpc.section import is_own
from verl_hpc.sources.cache import source_of
from verl_hpc.sources.local import model_settings

FIRST_WEIGHTS = "model.path"
DATA = ("data.train", "data.shuffle")
REWARD = ("reward.function", "reward.options", "reward.terms", "reward.smoothing")
RECIPE_FILE = "recipe's file"
ALGORITHM_FILES = {name: f"algorithm.{name}'s file" for name in ("advantage", "loss", "preference")}
EVALUATION = "what an evaluation asks and how it scores"
ENVIRONMENT, PROGRAM = "rollout.environment", "rollout.program"
TASKS = "how tasks score and learn"
MAY_CHANGE = (TASKS, *REWARD, RECIPE_FILE, *ALGORITHM_FILES.values(), EVALUATION, ENVIRONMENT)
"""Entries that may change with a warning, since users fix their functions between jobs."""
SAME_AS_FIRST = "the weights of model.path"
"""Value, instead of a hash, for an untrained role that uses the first weights."""
FROZEN = "roles that are not trained"
"""Untrained roles, except the reference, which may be added or removed with the KL."""
TRAINED = "roles that are trained"
_NEVER_CHANGE = {"recipe", TRAINED}
_REASONS = {
    "data.train": "other rows than those that the run has read from so far",
    "tokenizer": "other files than the run has used so far",
    FIRST_WEIGHTS: "other weights than those that the run started from, its KL reference or "
    "the base of its adapters",
}
"""Messages about entries compared by hash; showing the hashes would not help."""
_OTHER_WEIGHTS = "other weights than the run has computed with so far"
_CHANGES_NO_RESULT = (
    "published",
    "dtype",
    "torch_dtype",
    "max_positions",
    "max_position_embeddings",
    "transformers_version",
    "auto_map",
)
_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges*",
    "added_tokens*",
    "special_tokens_map*",
    "chat_template*",
    "*.model",
)


def fingerprint(
    control: Control,
    config: RunConfig,
    weights: Mapping[str, Weights],
    tokenizer: Path,
    resumes: bool,
) -> dict[str, str]:
    """Return by name what may not change unnoticed when a run is resumed; equal on every rank.

    Anything else may change: learning rates, steps, layouts, the number of ranks.

    Args:
        control: control plane of all ranks, which call this together; the first reads the files.
        config: the run's configuration.
        weights: weights that roles start from, by role.
        tokenizer: directory of the tokenizer.
        resumes: leave out the first weights where nothing uses them any more: reading is slow.

    Raises:
        DataError, CheckpointError: on every rank, if a file cannot be read.
    """
    data, sets, roles = config.data, config.evaluation_sets, config.role_settings
    first = next(iter(roles.values()))
    # Roles that compute with what they started from: untrained ones, and those with adapters.
    fixed = {n: role for n, role in roles.items() if role.lora or not role.trainable}
    of_first = [name for name, role in fixed.items() if role.model.path == first.model.path]
    # Which rows of train are left depends on evaluation where those of both are dropped.
    dropped = [sets[name].source for name in sorted(sets)] if data.overlap == "drop" else []

    def read() -> dict[str, str]:
        known = {
            "recipe": config.recipe,
            "seed": str(config.seed),
            "data.train": fingerprint_of_data(data.train, *dropped),
            "data.shuffle": str(data.shuffle).lower(),
            "data.chat": data.chat,
            "data.chat_template_kwargs": json.dumps(data.chat_template_kwargs, sort_keys=True),
            "data.system_prompt": json.dumps(data.system_prompt),
            "data.train_on": data.train_on,
            **_of_architecture(weights[first.name].arch),
            "tokenizer": _of_tokenizer(tokenizer),
            **_of_revisions(config),
        }
        # Of a user's files the content counts, not the path.
        if config.has_own_recipe:
            file, _, name = config.recipe.rpartition(":")
            known["recipe"] = f"{Path(file).name}:{name}"
            known[RECIPE_FILE] = of_file(Path(file)).hex()[:8]
        if config.tasks:
            known |= _of_tasks(config, dropped)
        trained = {name for name, role in roles.items() if role.trainable}
        known[TRAINED] = ", ".join(sorted(trained))
        known[FROZEN] = ", ".join(sorted(roles.keys() - trained - {REFERENCE})) or "none"
        for setting, text in ALGORITHM_FILES.items():
            name = getattr(config.algorithm, setting).name
            if is_own(name):
                known[text] = of_file(Path(name.rpartition(":")[0])).hex()[:8]
        if config.generates:
            known |= _of_reward(config.reward)
            known[ENVIRONMENT] = _of_environment(config.rollout.environment)
            if (program := config.rollout.program) is not None:
                known[PROGRAM] = json.dumps([program.command, program.max_turns])
        if config.evaluation.wanted:
            known[EVALUATION] = _of_evaluation(config)
        if of_first or not resumes:
            known[FIRST_WEIGHTS] = weights[first.name].fingerprint()
        for name, role in fixed.items():
            if role.lora is not None:
                known[f"lora of {name}"] = _of_adapters(role.lora)
            same = name in of_first
            known[f"roles.{name}.path"] = SAME_AS_FIRST if same else weights[name].fingerprint()
        return known

    return control.broadcast(control.together(read if control.rank == 0 else dict))


def _of_tasks(config: RunConfig, dropped: Sequence[SourceConfig]) -> dict[str, str]:
    """Return the recipes and data of all tasks, and a hash of their rewards and algorithms."""
    tasks = config.by_task
    recipes = (f"{name}: {task.recipe}" for name, task in tasks.items())
    data = (fingerprint_of_data(task.data.train, *dropped) for task in tasks.values())
    told = [
        [_of_reward(t.reward), *(_function(getattr(t.algorithm, n).name) for n in ALGORITHM_FILES)]
        for t in tasks.values()
    ]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return {"recipe": ", ".join(recipes), "data.train": ", ".join(data), TASKS: digest[:8]}


def _of_adapters(lora: LoraConfig) -> str:
    return f"rank {lora.rank}, alpha {lora.alpha:g}, {', '.join(sorted(lora.targets)) or 'all'}"


def _of_architecture(arch: Architecture) -> dict[str, str]:
    published = arch.published
    fields: Mapping[str, Any] = asdict(arch) if published is None else published.config
    return {
        f"config.json: {name}": json.dumps(value, sort_keys=True)
        for name, value in fields.items()
        if name not in _CHANGES_NO_RESULT and not name.startswith("_")
    }


def _of_revisions(config: RunConfig) -> dict[str, str]:
    """Return names and commits of models from a hub."""
    named = {setting: source_of(path) for setting, path in model_settings(config).items()}
    return {f"revision of {name}": source for name, source in named.items() if source}


def _of_tokenizer(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted({p for pattern in _TOKENIZER_FILES for p in directory.glob(pattern)}):
        if path.is_file():
            digest.update(os.fsencode(path.name) + b"\0" + of_file(path))
    return digest.hexdigest()


def _of_reward(config: RewardConfig) -> dict[str, str]:
    terms = {
        name: {"function": _function(t.function), "weight": t.weight, "options": t.options}
        for name, t in config.terms.items()
    }
    smoothing = config.smoothing.model_dump() if config.smoothing else None
    parts = (config.options, terms, smoothing)
    texts = (json.dumps(part, sort_keys=True, default=str) for part in parts)
    return dict(zip(REWARD, (_function(config.function), *texts), strict=True))


def _function(name: str) -> str:
    if not is_own(name):
        return name
    path, _, function = name.rpartition(":")
    # Not where it lies: a copy of the file is no change.
    return f"{Path(path).name}:{function} (the file's hash is {of_file(Path(path)).hex()[:8]})"


def _of_environment(config: EnvironmentConfig | None) -> str:
    if config is None:
        return "none"
    told = [_function(config.name), config.options, config.max_turns, config.role]
    return json.dumps(told, sort_keys=True, default=str)


def _of_evaluation(config: RunConfig) -> str:
    """Hash what decides an evaluation's metrics besides weights and the run's reward, 8 hexadecimal
    digits."""
    digest = hashlib.sha256()
    for name, chosen in config.evaluation_sets.items():
        settings = chosen.model_dump(mode="json", exclude={"source", "reward"})
        reward = _of_reward(chosen.reward) if chosen.reward is not None else None
        told = [name, fingerprint_of_data(chosen.source), settings, reward]
        digest.update(json.dumps(told, sort_keys=True).encode())
    return digest.hexdigest()[:8]


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names that are in both fingerprints with different values."""
    return [name for name in now if name in before and now[name] != before[name]]


def change_of(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describe a change with both values."""
    return f"{name} = {now[name]}, and was {before[name]}"


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe the changes that are not allowed."""
    names = [name for name in changed(before, now) if name not in MAY_CHANGE]
    frozen = dict.fromkeys((name for name in names if name.startswith("roles.")), _OTHER_WEIGHTS)
    reasons = {**_REASONS, **frozen}
    return [
        f"{name}: {reasons[name]}" if name in reasons else change_of(name, before, now)
        for name in names
    ]


def check_fingerprint(before: Mapping[str, str], now: Mapping[str, str], force: bool) -> None:
    """Refuse to resume a run whose fingerprint changed, except for entries in `MAY_CHANGE`.

    Args:
        before: fingerprint in the checkpoint.
        now: fingerprint of the configuration.
        force: accept any change except of the recipe and the trained roles.

    Raises:
        ConfigError: names what changed.
    """
    refused = changes(before, now)
    never = _NEVER_CHANGE.intersection(changed(before, now))
    if not refused or (force and not never):
        return
    way_out = "" if never else ", or set checkpoint.resume: force"
    raise ConfigError(
        f"this run resumes from a checkpoint, and is not the same any more: {'; '.join(refused)}. "
        "Give back what it was, or start a run of another name (model.path: its newest step)"
        f"{way_out}"
    )
