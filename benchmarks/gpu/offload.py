"""Trips of many gigabytes to page-locked host memory and back, each with its seconds.

They say what `plan` assumes: the bandwidth of the way to the host, how long page-locking takes at
the first trip, and what mapping and unmapping costs; start it with expandable segments and without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.gpu.setting import GIB, Figure, Setting

NUM_TRIPS = 5
_MOST_BYTES = {"cuda": 20 * 10**9, "cpu": 4 * 10**6}
_NUM_STORAGES = 200
_SHARE_OF_HOST, _SHARE_OF_DEVICE = 0.4, 0.5


def run(setting: Setting) -> list[Figure]:
    """Seconds of every trip; what came back is what left."""
    import torch

    from verl_hpc.engines.shared.offload import HostStore

    num_elements = _num_bytes(setting) // _NUM_STORAGES // 2
    state = [
        torch.full((num_elements,), number, dtype=torch.int16, device=setting.device)
        for number in range(_NUM_STORAGES)
    ]
    num_bytes = 2 * num_elements * _NUM_STORAGES
    store = HostStore(lambda part: state if part == "optimizer" else ())
    away, back, kept = [], [], []
    for _ in range(NUM_TRIPS):
        away.append(_seconds(setting, lambda: store.offload("optimizer")))
        kept.append(_reserved_bytes(setting))
        back.append(_seconds(setting, lambda: store.onload("optimizer")))
    wrong = sum(int((tensor != number).any()) for number, tensor in enumerate(state))
    trips = [
        Figure(f"trip {number}: {way}", seconds, "s")
        for number, both in enumerate(zip(away, back, strict=True), 1)
        for way, seconds in zip(("offload", "onload"), both, strict=True)
    ]
    later, onload = statistics.median(away[1:]), statistics.median(back[1:])
    return [
        Figure("bytes of a trip", num_bytes / 1e9, "GB"),
        *trips,
        Figure("first offload beyond the others: page-locking", away[0] - later, "s"),
        Figure("offload, median of the others", num_bytes / later / 1e9, "GB/s"),
        Figure("onload, median of the others", num_bytes / onload / 1e9, "GB/s"),
        Figure("reserved on the device while away, at most", max(kept) / GIB, "GiB"),
        Figure("storages that came back wrong", wrong, at_most=0),
    ]


def _num_bytes(setting: Setting) -> int:
    """As many as leave room on both sides."""
    from verl_hpc.runtime.host_memory import available_bytes, most_bytes

    host = min(available_bytes(), most_bytes())
    limits = [_MOST_BYTES[setting.device.type], int(_SHARE_OF_HOST * host)]
    if setting.on_gpu:
        import torch

        limits.append(int(_SHARE_OF_DEVICE * torch.cuda.mem_get_info()[0]))
    return min(limits)


def _seconds(setting: Setting, work: Callable[[], object]) -> float:
    setting.synchronize()
    start = time.perf_counter()
    work()
    setting.synchronize()
    return time.perf_counter() - start


def _reserved_bytes(setting: Setting) -> int:
    if not setting.on_gpu:
        return 0
    import torch

    return torch.cuda.memory_reserved()
