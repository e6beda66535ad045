"""Export a run's metrics to Prometheus: by a Pushgateway, a port, or a file of the node
exporter."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from prometheus_client import push_to_gateway, start_http_server, write_to_textfile

from verl_hpc.config.arguments import checked
from verl_hpc.config.trackers import PLACE, PrometheusConfig
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.prometheus import PrometheusMetrics

_logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""Time limit of one push, which does not hold up training."""
_ADDRESS = re.compile(rf"(https?://)?{PLACE}")


def check_port(port: int) -> None:
    """Raises: ConfigError: nobody can listen at it on this node."""
    try:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("", port))
    except OSError as error:
        raise _taken(port, error) from None


def _taken(port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"metrics.prometheus.port = {port}: {error.strerror} on rank 0's node; choose another, or "
        "push to a Pushgateway"
    )


class MetricsExporter(PrometheusMetrics):
    """Exports a run's metrics to Prometheus under the names of `verl_hpc.metrics.prometheus`.

    A failing destination is logged once and tried again at each step: a restarted monitor must not
    end a run, nor miss it afterwards.

    Args:
        pushgateway_url: address of a Pushgateway, such as http://monitor:9091.
        job_name: label `job` at the Pushgateway; a scrape has that of Prometheus's own settings.
        run_name: label `run` of all metrics in all destinations; if empty, the namespace of the
            trainer that gets the exporter, or none.
        port: port for scrapes, on all interfaces of this node.
        textfile: file for the node exporter's textfile collector; each run needs one of its own.

    Raises:
        ConfigError: the port is taken, an address is malformed, or no destination is given.
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
        if pushgateway_url is not None and not _ADDRESS.fullmatch(pushgateway_url):
            raise ConfigError(
                f"MetricsExporter: pushgateway_url = {pushgateway_url!r}; expected an address such "
                "as http://monitor:9091"
            )
        if port is not None and not 0 <= port < 2**16:
            raise ConfigError(f"MetricsExporter: port = {port}; expected 0 to 65535")
        if not job_name:
            raise ConfigError("MetricsExporter: job_name is empty; a Pushgateway needs one")
        super().__init__(run_name)
        self._has_name = bool(run_name)
        self._textfile, self._file_fails = textfile, False
        self._server: tuple[WSGIServer, threading.Thread] | None = None
        if port is not None:
            try:
                self._server = start_http_server(port, registry=self.registry)
            except OSError as error:
                raise _taken(port, error) from None
        self._gateway: _Pushgateway | None = None
        if pushgateway_url is not None:
            self._gateway = _Pushgateway(pushgateway_url, job_name)

    @classmethod
    def of(cls, config: PrometheusConfig, run_name: str) -> MetricsExporter:
        """Make the exporter that a run's settings ask for."""
        return cls(
            config.pushgateway,
            config.job_name,
            run_name=run_name,
            port=config.port,
            textfile=config.textfile,
        )

    def named(self, run: str) -> None:
        """Set the label `run`, or no label if `run` is empty, of an exporter made without one.

        Raises:
            ConfigError: it has another label, or was used without one.
        """
        if not self._has_name:
            super().named(run)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Publish a finished step; a scrape of the port reads it at any time."""
        self.step(step, values)
        if self._gateway is not None:
            self._gateway.publish(self)
        if self._textfile is not None:
            try:
                write_to_textfile(str(self._textfile), self.registry)
                self._file_fails = False
            except OSError as error:
                if not self._file_fails:
                    _logger.warning("metrics.prometheus: textfile %s: %s", self._textfile, error)
                self._file_fails = True

    def close(self) -> None:
        """Publish what is left, and free the port. The Pushgateway keeps the last values, and the
        file stays as the last step has left it."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
        if self._gateway is not None:
            self._gateway.close()


class _Pushgateway:
    """Pushes from a thread of its own, the newest state only: a slow gateway delays no step."""

    def __init__(self, url: str, job: str) -> None:
        self._url, self._job = url, job
        self._wanted = threading.Semaphore(0)
        self._metrics: PrometheusMetrics | None = None
        self._fails = self._ends = False
        self._thread = threading.Thread(target=self._run, name="verl_hpc-pushgateway", daemon=True)
        self._thread.start()

    def publish(self, metrics: PrometheusMetrics) -> None:
        self._metrics = metrics
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
            if self._metrics is not None:
                self._push(self._metrics)
            if ends:
                return

    def _push(self, metrics: PrometheusMetrics) -> None:
        grouping = {"run": metrics.run} if metrics.run else {}
        try:
            push_to_gateway(self._url, self._job, metrics.registry, grouping, _TIMEOUT_S)
        except (OSError, HTTPException) as error:
            if not self._fails:
                _logger.warning(
                    "metrics.prometheus: %s: %s; each step tries again", self._url, error
                )
            self._fails = True
        else:
            self._fails = False
