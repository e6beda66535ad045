"""A rank that starts a debugger when it is asked to.

Rank 0 looks for requests and hands them on through the job's store, so that one rank, not
all, asks the file system. It is the watchdog's thread that looks: a rank whose main thread hangs
can be asked, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.package import FOLDER
from verl_hpc.runs.attach import Listening, answer, take_requests
from verl_hpc.runtime.debug.debugger import listen
from verl_hpc.runtime.world import World

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_KEY = "verl_hpc/attach/{rank}"


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

    def look(self, store: TCPStore) -> None:
        """Hand on or act on a request that is new.

        Raises:
            OSError: the answer cannot be written.
        """
        if self._world.rank == 0:
            for rank, name in take_requests(self._directory).items():
                store.set(_KEY.format(rank=rank), name)
        mine = _KEY.format(rank=self._world.rank)
        if not store.check([mine]):
            return
        request = store.get(mine).decode()
        if request != self._seen:
            self._seen = request
            answer(self._directory, self._start(request))

    def _start(self, request: str) -> Listening:
        port, error = 0, ""
        try:
            port = listen()
        except (ImportError, OSError, RuntimeError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        code = str(FOLDER.parent)
        world = self._world
        return Listening(request, world.rank, world.host, os.getpid(), port, code, error)
