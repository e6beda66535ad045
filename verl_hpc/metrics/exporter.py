"""Where Prometheus finds a run: a Pushgateway, a port, or a file of the node exporter."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from prometheus_client import (
    CollectorRegistry,
    push_to_gateway,
    start_http_server,
    write_to_textfile,
)

from verl_hpc.config.arguments import checked
from verl_hpc.config.trackers import PrometheusConfig
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.prometheus import PrometheusMetrics

_logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""Of one push; they go on beside the training."""


def check_port(port: int) -> None:
    """Raises: ConfigError: nobody can listen at it on this node."""
    try:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("", port))
    except OSError as error:
        raise _taken(port, error) from None


def _is_address(url: str) -> bool:
    """As prometheus_client reads it: without a scheme it is http."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_host = bool(parts.hostname) and not re.search(r"\s", url)
        return parts.scheme in ("http", "https") and is_host and parts.port != 0
    except ValueError:
        return False


def _taken(port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"metrics.prometheus.port = {port}: {error.strerror} on rank 0's node; choose another, or "
        "push to a Pushgateway"
    )


class Destination(Protocol):
    """What takes the registry when a step is done."""

    def publish(self, registry: CollectorRegistry) -> None:
        """Raises: OSError: it could not."""

    def close(self) -> None:
        """Nothing more comes."""


class MetricsExporter:
    """Gives a run's metrics to Prometheus, under the names of `verl_hpc.metrics.prometheus`.

    A destination that fails is told once, until it works again: a monitor that is restarted must
    not end a run, nor keep it from being seen afterwards.

    Args:
        pushgateway_url: of a Pushgateway, such as http://monitor:9091.
        job_name: its label `job` there; a scrape has that of Prometheus's own settings.
        run_name: label `run` of all metrics, wherever they go; if empty, the namespace of the
            trainer that it is given to, or none.
        port: that Prometheus scrapes, on all interfaces of this node.
        textfile: for the node exporter's textfile collector; of one run alone.

    Raises:
        ConfigError: the port is taken, an address is none, or no destination is given.
    """

    @checked
    def __init__(
        self,
        pushgateway_url: str | None = None,
        job_name: str = "verl_hpc",
        *,
        run_name: str = "",
        port: int | None = None,
        textfile: str | Path | None = None,
    ) -> None:
        if pushgateway_url is None and port is None and textfile is None:
            raise ConfigError(
                "MetricsExporter: it has nowhere to write; give pushgateway_url, port or textfile"
            )
        if pushgateway_url is not None and not _is_address(pushgateway_url):
            raise ConfigError(
                f"MetricsExporter: pushgateway_url = {pushgateway_url!r}; expected an address such "
                "as http://monitor:9091"
            )
        if port is not None and not 0 <= port < 2**16:
            raise ConfigError(f"MetricsExporter: port = {port}; expected 0 to 65535")
        if not job_name:
            raise ConfigError("MetricsExporter: job_name is empty; a Pushgateway needs one")
        self._metrics, self._has_name = PrometheusMetrics(run_name), bool(run_name)
        self._failing: set[Destination] = set()
        self._destinations: list[Destination] = []
        if port is not None:
            self._destinations.append(_Port(port, self._metrics.registry))
        if textfile is not None:
            self._destinations.append(_TextFile(Path(textfile)))
        self._grouping = {"run": run_name} if run_name else {}
        if pushgateway_url is not None:
            gateway = _Pushgateway(pushgateway_url, job_name, self._grouping)
            self._destinations.append(gateway)

    @classmethod
    def of(cls, config: PrometheusConfig, run_name: str) -> MetricsExporter:
        """The one that a run's settings ask for."""
        return cls(
            config.pushgateway,
            config.job_name,
            run_name=run_name,
            port=config.port,
            textfile=config.textfile,
        )

    def named(self, run: str) -> None:
        """Its label `run`, or that it has none if it is empty, where it was made without.

        Raises:
            ConfigError: it has another one, or was given to a trainer or has told of steps without.
        """
        if not self._has_name:
            self._metrics.named(run)
            if run:
                self._grouping["run"] = run

    def stage(self, name: str) -> None:
        """Prometheus is told of finished steps only."""

    def by_task(self) -> None:
        """Metrics are of several tasks, each with its name as a label.

        Raises:
            ConfigError: it has told of metrics without.
        """
        self._metrics.by_task()

    def rewards(self, values: Iterable[float], task: str = "") -> None:
        """Scores of all responses of a step, or of a task's, before its `write`."""
        self._metrics.rewards(values, task)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Tell all destinations of a finished step."""
        self._metrics.step(step, values)
        for destination in self._destinations:
            try:
                destination.publish(self._metrics.registry)
            except OSError as error:
                if destination not in self._failing:
                    _logger.warning("metrics.prometheus: %s: %s", destination, error)
                self._failing.add(destination)
            else:
                self._failing.discard(destination)

    def close(self) -> None:
        """Tell what is left, and free the port. The Pushgateway keeps the last values."""
        for destination in self._destinations:
            destination.close()


class _Port:
    """Scraped whenever Prometheus likes; there is nothing to do at a step."""

    def __init__(self, port: int, registry: CollectorRegistry) -> None:
        try:
            self._server, self._thread = start_http_server(port, registry=registry)
        except OSError as error:
            raise _taken(port, error) from None

    def publish(self, registry: CollectorRegistry) -> None:
        """It reads the registry itself."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _TextFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return f"textfile {self._path}"

    def publish(self, registry: CollectorRegistry) -> None:
        write_to_textfile(str(self._path), registry)

    def close(self) -> None:
        """The file stays, as the last step has left it."""


class _Pushgateway:
    """Pushes from a thread of its own, the newest state only: a slow gateway delays no step."""

    def __init__(self, url: str, job: str, grouping: dict[str, str]) -> None:
        self._url, self._job, self._grouping = url, job, grouping
        self._wanted = threading.Semaphore(0)
        self._registry: CollectorRegistry | None = None
        self._fails = self._ends = False
        self._thread = threading.Thread(target=self._run, name="verl_hpc-pushgateway", daemon=True)
        self._thread.start()

    def publish(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._wanted.release()

    def close(self) -> None:
        self._ends = True
        self._wanted.release()
        self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            while self._wanted.acquire(blocking=False):
                pass
            ends = self._ends
            if self._registry is not None:
                self._push(self._registry)
            if ends:
                return

    def _push(self, registry: CollectorRegistry) -> None:
        try:
            push_to_gateway(self._url, self._job, registry, self._grouping, _TIMEOUT_S)
        except (OSError, HTTPException) as error:
            if not self._fails:
                _logger.warning(
                    "metrics.prometheus: %s: %s; each step tries again", self._url, error
                )
            self._fails = True
        else:
            self._fails = False
