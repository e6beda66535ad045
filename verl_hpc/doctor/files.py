"""What a run needs on disk, looked for on the login node: room, model, data, Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from verl_hpc.cluster.checks import (
    files_of,
    inputs,
    is_path,
    model_directory,
    other_python,
    outside,
)
from verl_hpc.cluster.job import Job
from verl_hpc.cluster.request import Request
from verl_hpc.config.run import RunConfig
from verl_hpc.config.trackers import wanted_trackers
from verl_hpc.doctor.quota import Quota, read_quotas
from verl_hpc.errors import ClusterError, ConfigError, DataError, ModelError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.package import FOLDER
from verl_hpc.runs.verdict import Verdict, fails, ok, unknown
from verl_hpc.sources.local import fetch_command, model_settings, needs_fetch

_GB = 1e9
_CHECKPOINT_BYTES = 14
"""Bytes of a parameter in a checkpoint: bfloat16 weights, and master weights and two moments of
Adam in float32."""
_FILES = 1000
"""A run makes at least so many: a snapshot of the code, logs, checkpoints of every rank."""
_PYTHON_TIMEOUT_S = 30.0
# Versions are read from what is installed; nothing heavy is imported.
_PYTHON = """
import json, sys
import verl_hpc
from importlib import metadata
found = {}
for name in ("torch", "mpi4py", "megatron-core", "h5py", "vllm", *sys.argv[1:]):
    found[name] = None
    for distribution in (name, name + "-cpu"):
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            pass
print(json.dumps({"version": sys.version.split()[0], "found": found}))
"""


def check_room(job: Job, *, has_config: bool) -> Verdict:
    """The run directory can be written, and has room for the checkpoints that are kept."""
    request, run = job.request, job.request.run_directory
    there = next(path for path in (run, *run.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return fails("run directory", f"{there} cannot be written", "set directory=...")
    free: float = shutil.disk_usage(there).free
    text = f"{there}: {free / _GB:,.0f} GB free in the file system"
    try:
        quotas = read_quotas(there)
    except ClusterError as error:
        text += f" (quotas are not seen: {error})"
        quotas = []
    for quota in quotas:
        free = min(free, quota.free_bytes)
        text += f", {_shown(quota)}"
    config = request.config
    each = _checkpoint(job) if has_config else None
    count = _num_checkpoints(config)
    needed = (each or 0) * count
    if each is not None:
        text += f"; checkpoints need about {needed / _GB:,.1f} GB"
        if config.steps is None:
            text += f" if there are {count:,}"
    if any(quota.free_files < _FILES for quota in quotas):
        return fails("run directory", text, "remove files, or set directory=...")
    if free < needed:
        if config.steps is None and free >= 2 * (each or 0):
            return unknown("run directory", text, "how many there are follows from the data")
        todo = "make room, lower checkpoint.keep, or set directory=..."
        return fails("run directory", text, todo)
    return ok("run directory", text)


def _shown(quota: Quota) -> str:
    parts = []
    if quota.limit_bytes is not None:
        parts.append(f"{quota.used_bytes / _GB:,.0f} of {quota.limit_bytes / _GB:,.0f} GB")
    if quota.limit_files is not None:
        parts.append(f"{quota.used_files:,} of {quota.limit_files:,} files")
    return f"{quota.whose} uses {' and '.join(parts)}"


def check_inputs(job: Job) -> Iterator[Verdict]:
    """Model, tokenizer, data and reward function are where the ranks will look for them."""
    for name, path in inputs(job.request):
        try:
            file = outside(job, name, path)
            files = files_of(name, file) if job.site.check_paths else [file]
            file = next((f for f in files if not f.exists()), file)
        except (ConfigError, DataError) as error:
            yield fails(name, *str(error).split("; ", 1))
            continue
        if not job.site.check_paths and not file.exists():
            yield unknown(name, f"{file} is not seen from here, and check_paths is false")
        elif needs_fetch(path):
            todo = f"on a node with network: {fetch_command([path])}"
            yield fails(name, f"{path} is no directory here, and not in the cache", todo)
        elif not all(f.exists() for f in files):
            yield fails(name, f"{file} does not exist", "bring it here, or correct the path")
        elif not all(os.access(f, os.R_OK) for f in files):
            yield fails(name, f"{file} cannot be read", "ask its owner for permission")
        else:
            is_model = name in model_settings(job.request.config) and name.endswith(".path")
            is_model = is_model and not name.endswith("lora.path")
            engine = _engine_of(job.request.config, name)
            yield _model(name, file, engine) if is_model else ok(name, str(file))


def check_python(job: Job, *, has_config: bool) -> Verdict:
    """The interpreter of the ranks can import this package, and has the others installed."""
    site, request = job.site, job.request
    if (why := other_python(job)) is not None:
        return unknown("python", f"{site.python}: {why}; --nodes tries it")
    environ = dict(os.environ)
    if site.code == "snapshot":
        environ["PYTHONPATH"] = str(FOLDER.parent)
    python = os.path.expandvars(site.python)
    metrics = request.config.metrics
    trackers = [package for _, package in wanted_trackers(metrics)] if has_config else []
    command = [*python.split(), "-c", _PYTHON, *trackers]
    try:
        done = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PYTHON_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if is_path(python) and not site.check_paths and isinstance(error, FileNotFoundError):
            return unknown("python", f"{python} is not seen from here, and check_paths is false")
        return fails("python", f"{python}: {error}", "set python in the site profile")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if site.setup:
            return unknown("python", f"{python}: {reason}; the job's setup may change that")
        todo = "set python in the site profile, or what setup: must load first"
        return fails("python", f"{python} cannot import verl_hpc: {reason}", todo)
    needed = [*_needed(request, has_config), *trackers]
    return _python_verdict(python, needed, json.loads(done.stdout))


def _needed(request: Request, has_config: bool) -> Iterator[str]:
    yield from ("torch", "megatron-core", "h5py")
    if request.profile.site.mpi != "none":
        yield "mpi4py"
    config = request.config
    if has_config and config.generates and config.rollout.engine == "vllm":
        yield "vllm"


def _python_verdict(python: str, needed: list[str], answer: dict) -> Verdict:
    versions = answer["found"]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    text = f"{python} {answer['version']} with {shown or 'none of our packages'}"
    missing = [name for name in needed if versions[name] is None]
    if missing:
        todo = "install them, or set python in the site profile to an interpreter that has them"
        return fails("python", f"{text}; without {', '.join(missing)}", todo)
    return ok("python", text)


def _num_checkpoints(config: RunConfig) -> int:
    """Most checkpoints at a time: those that are kept, and one that is being written."""
    most = config.checkpoint.keep
    if config.steps is not None:
        every = config.checkpoint.every or config.steps
        most = min(most, -(-config.steps // every))
    return most + 1


def _checkpoint(job: Job) -> float | None:
    """Bytes of one; None if unknown."""
    parameters = 0
    for role in job.request.config.role_settings.values():
        if not role.trainable:
            continue
        directory = model_directory(job, role)
        if directory is None:
            return None
        try:
            parameters += read_architecture(directory, role.parallel.engine).num_parameters
        except ModelError:
            return None
    return parameters * _CHECKPOINT_BYTES


def _engine_of(config: RunConfig, setting: str) -> str:
    """Return the training engine of the role whose model a setting names."""
    section, role, *_ = setting.split(".")
    known = config.role_settings.get(role) if section == "roles" else None
    return (known or config).parallel.engine


def _model(name: str, path: Path, engine: str) -> Verdict:
    if (path / "manifest.json").is_file():
        return ok(name, f"{path}: a step of a checkpoint")
    try:
        architecture = read_architecture(path, engine)
        safetensors_shard_map(path)
    except ModelError as error:
        return fails(name, str(error), "every file of the model must be here: nodes download none")
    if not any(path.glob("tokenizer*")):
        return fails(name, f"{path} has no tokenizer", "set model.tokenizer, or copy it there")
    return ok(name, f"{path}: {_large(architecture.num_parameters)} parameters")


def _large(number: int) -> str:
    return f"{number / 1e9:,.2f} billion" if number >= 1e8 else f"{number / 1e6:,.2f} million"
