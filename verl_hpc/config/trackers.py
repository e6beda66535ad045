"""Where a run's metrics go: Prometheus, and every tracker of `verl_hpc.trackers`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model, model_validator

from verl_hpc import trackers
from verl_hpc.errors import ConfigError
from verl_hpc.section import Integer, PathText, Section
from verl_hpc.tracker import Label, Tracker

PLACE = r"[^\s/?#]+(/[^\s?#]*)?"
"""Pattern of an address behind http://."""


def _check_textfile(path: str) -> str:
    if not path.endswith(".prom"):
        raise ValueError(f"{path}: the node exporter reads files that end in .prom alone")
    return path


class PrometheusConfig(Tracker):
    """Rank 0 gives the metrics of each step to Prometheus, in one way or several, with the
    name of the run as their label `run`."""

    module = "prometheus_client"
    package = "prometheus-client"
    pushgateway: Annotated[str, Field(pattern=rf"^https?://{PLACE}$")] | None = None
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


def _trackers() -> Iterator[tuple[str, type[Tracker]]]:
    """Yield the class of each module of `verl_hpc.trackers`, by the module's name."""
    for info in iter_modules(trackers.__path__):
        values = vars(import_module(f"{trackers.__name__}.{info.name}")).values()
        kinds = [v for v in values if isinstance(v, type) and issubclass(v, Tracker)]
        yield info.name, next(kind for kind in kinds if kind is not Tracker)


TRACKERS = dict(_trackers())


class _Metrics(Section):
    terminal: Literal["auto", "live", "lines", "off"] = "auto"
    """auto is live on a terminal, also on that of `train --ranks`, and lines elsewhere. Lines leave
    figures out to fit a terminal, or the variable COLUMNS; metrics.jsonl has all of them."""
    prometheus: PrometheusConfig | None = None
    """Push to a Pushgateway, be scraped, or write a file for the node exporter."""
    report: bool = True
    """report.html at the end."""

    @property
    def trackers(self) -> dict[str, Tracker]:
        """Prometheus and trackers that are wanted, by their field."""
        given = {name: getattr(self, name) for name in ("prometheus", *TRACKERS)}
        return {n: TRACKERS[n]() if t is True else t for n, t in given.items() if t}


if TYPE_CHECKING:
    MetricsConfig = _Metrics
else:

    def _field(kind: type[Tracker]) -> tuple[Any, Any]:
        says = Field(description=kind.__doc__)
        if kind.model_fields:
            return Annotated[kind | None, says], None
        return Annotated[bool, says], False

    MetricsConfig = create_model(
        "MetricsConfig",
        __base__=_Metrics,
        __doc__="Sinks besides metrics.jsonl, which is always written.",
        **{name: _field(kind) for name, kind in TRACKERS.items()},
    )


def check_trackers(metrics: MetricsConfig) -> None:
    """Look for the packages that `metrics` needs, in this Python, without importing them.

    Raises:
        ConfigError: one is not installed.
    """
    for name, tracker in metrics.trackers.items():
        if not is_installed(tracker.module):
            package = tracker.package
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
