"""A dashboard that serves in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_hpc.cli.dashboard.server import Server, make_server


@contextmanager
def serving(runs: Path) -> Iterator[Server]:
    with make_server(runs) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()
