"""Ranks as threads of one process: the control plane over gloo, without a launcher or MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from verl_hpc.runtime.control import Control
from verl_hpc.runtime.gloo_channel import GlooChannel


def on_ranks(size: int, work: Callable[[Control], Any], timeout_s: float = 20.0) -> list[Any]:
    """What `work(control)` gives on each rank, each a thread; raises what one of them raises."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def rank(number: int) -> Any:
        client = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=20))
        return work(Control(GlooChannel(client, number, size, timeout_s)))

    results = in_threads(size, rank)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def in_threads(size: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(rank)` gives or raises on each rank, each a thread."""
    results: list[Any] = [None] * size

    def rank(number: int) -> None:
        try:
            results[number] = work(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a rank hangs"
    return results
