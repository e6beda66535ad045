"""The three switches that are off by default: what each of them lets happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from verl_hpc.api.settings import PPOConfig
from verl_hpc.errors import ConfigError

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
