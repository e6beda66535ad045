"""The packages that trackers of a run need, and whether this Python has them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from verl_hpc.config.output import MetricsConfig
from verl_hpc.errors import ConfigError

_PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "prometheus": ("prometheus_client", "prometheus-client"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "swanlab": ("swanlab", "swanlab"),
}
"""Module to import and package to install, by the field of metrics."""


def check_trackers(metrics: MetricsConfig) -> None:
    """Look for the packages that `metrics` needs, in this Python, without importing them.

    Raises:
        ConfigError: one is not installed.
    """
    for setting, package in missing_trackers(metrics):
        raise ConfigError(
            f"{setting} needs the package {package}, which is not installed in this Python; "
            f"pip install {package} (or verl_hpc[track], which has all trackers), or leave "
            f"{setting} out"
        )


def missing_trackers(metrics: MetricsConfig) -> Iterator[tuple[str, str]]:
    """Settings whose package is not installed in this Python, and the package."""
    for name, package in wanted_trackers(metrics):
        if not is_installed(_PACKAGES[name][0]):
            yield f"metrics.{name}", package


def is_installed(module: str) -> bool:
    """Whether this Python has a module, found without importing it."""
    spec = importlib.util.find_spec(module)
    # A directory of that name, such as the one that W&B leaves where it runs, is no package.
    return spec is not None and spec.origin is not None


def wanted_trackers(metrics: MetricsConfig) -> Iterator[tuple[str, str]]:
    """Fields of metrics that are given, and the package that each needs."""
    for name, (_, package) in _PACKAGES.items():
        if getattr(metrics, name):
            yield name, package
