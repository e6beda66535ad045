"""Where a run's metrics go: settings of trackers, and the packages that they need."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from verl_hpc.errors import ConfigError
from verl_hpc.section import Integer, PathText, Section

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$", max_length=128)]
"""Name of a project or a job: letters, digits, space, '.', '_' and '-'."""


def _check_textfile(path: str) -> str:
    if not path.endswith(".prom"):
        raise ValueError(f"{path}: the node exporter reads files that end in .prom alone")
    return path


class PrometheusConfig(Section):
    """Rank 0 gives the metrics of each step to Prometheus, in one way or several, with the
    name of the run as their label `run`."""

    pushgateway: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")] | None = None
    """Address of a Pushgateway, such as http://monitor:9091, that rank 0 pushes to; if it does not
    answer, that is logged once, and the next step tries again."""
    port: Annotated[Integer, Field(ge=1, le=65535)] | None = None
    """Port of rank 0's node that Prometheus scrapes, for as long as the run lasts. Everybody who
    reaches the node may read the metrics there."""
    textfile: Annotated[PathText, AfterValidator(_check_textfile)] | None = None
    """File for the node exporter's textfile collector, on rank 0's node; each step replaces it in
    one piece, so that each run needs one of its own."""
    job_name: Label = "verl_hpc"
    """The label `job` at the Pushgateway; elsewhere it is that of Prometheus's own settings."""

    @model_validator(mode="after")
    def _goes_somewhere(self) -> PrometheusConfig:
        if self.pushgateway is None and self.port is None and self.textfile is None:
            raise ValueError("give pushgateway, port or textfile: where the metrics go")
        return self


class WandbConfig(Section):
    """Weights & Biases, without a network: RUN/wandb has what `python -m verl_hpc sync RUN` uploads
    from a login node. Each start of a run is a run there, all in the group of the run's name."""

    project: Label
    """Project of the uploaded run."""
    entity: Label | None = None
    """User or team; null is that of the key that uploads."""
    mode: Literal["offline"] = "offline"
    """Ranks need no network and no key; `sync` has both."""


class MlflowConfig(Section):
    """MLflow's store of files, in RUN/mlflow; each start of a run is a run in it."""

    experiment: Label = "verl_hpc"
    """Experiment that the runs belong to."""


class SwanlabConfig(Section):
    """SwanLab, without a network: RUN/swanlab has what `swanlab sync` uploads."""

    project: Label
    """Project of the uploaded run."""
    mode: Literal["offline"] = "offline"
    """Ranks need no network and no key."""


class MetricsConfig(Section):
    """Sinks besides metrics.jsonl, which is always written."""

    terminal: Literal["auto", "live", "lines", "off"] = "auto"
    """auto is live on a terminal, also on that of `train --ranks`, and lines elsewhere. Lines leave
    figures out to fit a terminal, or the variable COLUMNS; metrics.jsonl has all of them."""
    tensorboard: bool = False
    """Event files for TensorBoard, in tensorboard/ of the run directory."""
    prometheus: PrometheusConfig | None = None
    """Push to a Pushgateway, be scraped, or write a file for the node exporter."""
    wandb: WandbConfig | None = None
    """An offline run of Weights & Biases, in wandb/ of the run directory."""
    mlflow: MlflowConfig | None = None
    """A run of MLflow, in mlflow/ of the run directory."""
    swanlab: SwanlabConfig | None = None
    """An offline run of SwanLab, in swanlab/ of the run directory."""
    report: bool = True
    """report.html at the end."""


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
    for name, package in wanted_trackers(metrics):
        if not is_installed(_PACKAGES[name][0]):
            raise ConfigError(
                f"metrics.{name} needs the package {package}, which is not installed in this "
                f"Python; pip install {package} (or verl_hpc[track], which has all trackers), or "
                f"leave metrics.{name} out"
            )


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
