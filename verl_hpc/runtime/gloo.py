"""How gloo's groups connect, and on which event loops.

torch gives every group its own device, whose thread wakes up a hundred times a second for as
long as the group lives. Megatron-core and vLLM make dozens of groups; where ranks share cores, that
adds up to whole cores. So groups share one.

A group connects all its ranks with each other when it is made: each asks the job's store for every
other, and keeps a socket to it, though few of a large group's pairs ever talk. Large groups
therefore connect a pair when it first talks. Their device is their own: gloo ends it with the
group, and tells its connections apart by rank alone (gloo's `transport/tcp/context.cc`).
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

MESHED = 32
"""Most ranks of a group that are all connected when it is made: they notice at once when one dies,
whoever it talks to."""


def share_device() -> None:
    """Make every gloo group that is created from now on use one device, or connect lazily."""
    import torch.distributed.distributed_c10d as c10d

    plain: Any = c10d.ProcessGroupGloo
    if plain.__name__ == "SharedDeviceGloo":
        return
    # The first interface that the site names, as torch itself would choose, or the host's.
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]

    def make_device(lazy: bool) -> Any:
        device = plain.create_device(interface=interface, lazy_init=lazy) if interface else None
        return device or plain.create_default_device(lazy_init=lazy)

    shared = make_device(lazy=False)

    class SharedDeviceGloo(plain):  # type: ignore[misc]
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = plain._Options()
            options._devices = [shared if size <= MESHED else make_device(lazy=True)]
            options._timeout = timeout
            super().__init__(store, rank, size, options)

    c10d.ProcessGroupGloo = SharedDeviceGloo
