"""The config.json of every role's model: given, at the model's path, or shipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from verl_hpc.cluster.checks import model_directory
from verl_hpc.cluster.job import Job
from verl_hpc.errors import ConfigError
from verl_hpc.sources.local import SIZES, fetch_command, on_hub, shipped_sizes


def model_files(job: Job, given: Mapping[str, Path] | None = None) -> dict[str, Path]:
    """Return the file or directory with the sizes of each role's model.

    Args:
        job: job of the run.
        given: files by role; the empty name has that of all other roles with model.path.

    Raises:
        ConfigError: the sizes of a role's model are nowhere.
    """
    config, given = job.request.config, given or {}
    files = {}
    for name, role in config.role_settings.items():
        own = role.model.path != config.model.path
        path = given.get(name) or (None if own else given.get(""))
        path = path or model_directory(job, role) or shipped_sizes(role.model.path)
        if path is None:
            raise _missing(name, role.model.path, own)
        files[name] = path
    return files


def _missing(role: str, path: str, own: bool) -> ConfigError:
    setting = f"roles.{role}.path" if own else "model.path"
    prefix = f"{role}=" if own else ""
    where = f"; {SIZES}/ has those of some published models"
    where += f"; or {fetch_command([path])}" if on_hub(path) else ""
    return ConfigError(
        f"{setting} = {path}: no config.json there, which has the model's sizes; its config.json "
        "alone is enough for a family with a layer table (docs/models.md): `plan` takes "
        f"--model-config {prefix}FILE{where}"
    )
