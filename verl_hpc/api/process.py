"""What a trainer of one process refuses: several ranks, and what its three switches let happen."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
from pydantic import Field

from verl_hpc.api.settings import PPOConfig
from verl_hpc.errors import ConfigError
from verl_hpc.runtime.environment import setting

_BROUGHT = "transformers_modules"
"""Package of the code that transformers loads from a model's directory or page."""


def refused(switch: str, what: str) -> ConfigError:
    """Return the error that says which switch something needs."""
    return ConfigError(
        f"{what} needs {switch}: True in PPOTrainer's config, which is off by default"
    )


def check_code(config: PPOConfig, **models: Any) -> None:
    """Raise ConfigError if a model's code came with its weights, and that is not allowed."""
    for name, model in models.items():
        modules = model.modules() if isinstance(model, torch.nn.Module) else [model]
        for module in modules:
            kind = type(module)
            if kind.__module__.split(".")[0] == _BROUGHT and not config.allow_unsafe_operations:
                raise refused(
                    "allow_unsafe_operations",
                    f"{name}: {kind.__name__} is code that came with a model (trust_remote_code), "
                    "which may do anything that you may; to train it",
                )


@contextmanager
def debug_and_profile(config: PPOConfig, step: int, directory: Path) -> Iterator[None]:
    """Surround a step with what is switched on.

    Args:
        directory: directory of traces, `step_N.json` for chrome://tracing and Perfetto.
    """
    anomalies = (
        torch.autograd.set_detect_anomaly(True) if config.enable_debug_mode else nullcontext()
    )
    with anomalies:
        if not config.enable_profiling:
            yield
            return
        with torch.profiler.profile() as profile:
            yield
        directory.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(directory / f"step_{step}.json"))


_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers give the number of ranks."""


def check_one_process(what: str) -> None:
    """Refuse to be one of several ranks: each would train a copy of its own, and all would write
    the same files.

    Args:
        what: name of the class, for the message.

    Raises:
        ConfigError: this is one of several ranks.
    """
    num_ranks = _num_ranks()
    if num_ranks > 1:
        raise ConfigError(
            f"{what}: this process is one of {num_ranks} ranks, and a model that is handed over in "
            "Python is whole on each of them, so that each would train a copy of its own. Start "
            "the program without mpiexec, srun or torchrun; for several ranks, a run of "
            f"`python -m verl_hpc train --ranks {num_ranks}` (or srun, mpiexec) reshards in every "
            "step between the layout of `parallel` and that of `rollout` "
            "(rollout.tensor_parallel, rollout.grouping: zero_redundancy)"
        )


def _num_ranks() -> int:
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    sizes = [setting(name, "1") for name in _SIZES]
    return max(int(size) if size.isdigit() else 1 for size in sizes)


Namespace = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None
"""A name that a directory may have; None for no prefix."""


def temporary_directory(namespace: str | None) -> tempfile.TemporaryDirectory[str]:
    """Make a directory whose name begins with the namespace; it goes with its context."""
    return tempfile.TemporaryDirectory(prefix=f"{namespace or 'verl_hpc'}-")
