"""One event loop for all gloo groups of a rank.

torch gives every group its own device, whose thread wakes up a hundred times a second for as
long as the group lives. Megatron-core and vLLM make dozens of groups; where ranks share cores, that
adds up to whole cores.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any


def share_device() -> None:
    """Make every gloo group that is created from now on use one device."""
    import torch.distributed.distributed_c10d as c10d

    plain: Any = c10d.ProcessGroupGloo
    if plain.__name__ == "SharedDeviceGloo":
        return
    # The first interface that the site names, as torch itself would choose, or the host's.
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    device = plain.create_device(interface=interface) if interface else None
    device = device or plain.create_default_device()

    class SharedDeviceGloo(plain):  # type: ignore[misc]
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = plain._Options()
            options._devices = [device]
            options._timeout = timeout
            super().__init__(store, rank, size, options)

    c10d.ProcessGroupGloo = SharedDeviceGloo
