"""A rank that starts a debugger when it is asked to.

Rank 0 looks for the request file and hands it on through the job's store, so that one rank, not
all, asks the file system. It is the watchdog's thread that looks: a rank whose main thread hangs
can be asked, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

import verl_hpc
from verl_hpc.cluster.attach import Listening, answer, take_request
from verl_hpc.runtime.debugger import listen
from verl_hpc.runtime.world import World

_KEY = "verl_hpc/attach"


class Store(Protocol):
    """The part of a torch store that requests need."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Attachments:
    """This rank's part in requests for a debugger.

    Args:
        world: of the job.
        run_directory: where requests are left.
    """

    def __init__(self, world: World, run_directory: Path) -> None:
        self._world = world
        self._directory = run_directory
        self._seen = ""

    def look(self, store: Store) -> None:
        """Hand on or act on a request that is new.

        Raises:
            OSError: the answer cannot be written.
        """
        if self._world.rank == 0 and (found := take_request(self._directory)) is not None:
            store.set(_KEY, found)
        if not store.check([_KEY]):
            return
        request = json.loads(store.get(_KEY))
        if request["request"] == self._seen:
            return
        self._seen = request["request"]
        if request["rank"] == self._world.rank:
            answer(self._directory, self._start(request["request"]))

    def _start(self, request: str) -> Listening:
        port, error = 0, ""
        try:
            port = listen()
        except (ImportError, OSError, RuntimeError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        code = str(Path(verl_hpc.__file__).parents[1])
        world = self._world
        return Listening(request, world.rank, world.host, os.getpid(), port, code, error)
