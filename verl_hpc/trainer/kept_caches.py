"""Keep compile caches from one start of a run to the next, in an archive on shared storage."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Collection
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import RunLayouts, layouts_of
from verl_hpc.runs.contract import CACHE_DIRECTORY, KEPT_CACHES
from verl_hpc.runtime import cache_archive, environment
from verl_hpc.runtime.session import Session

_COMPILERS = ("torch", "triton", "vllm", "tilelang", "transformer-engine", "megatron-core")
"""Packages that compile code, or whose code is compiled."""
_PROCESSOR = ("model name", "flags", "CPU part", "Features")
"""Lines of /proc/cpuinfo that decide which instructions a C++ compiler uses."""
_LOG = logging.getLogger(__name__)

Node = frozenset[tuple[str, int]]
"""Work of a node's ranks: (pool, place in its group) of each."""


def open_caches(session: Session, arch: Architecture, layouts: RunLayouts) -> KeptCaches | None:
    """Open the archive of compile caches; None if the site profile keeps none of them.

    Args:
        session: this rank's session.
        arch: sizes of the first role's model.
        layouts: the run's layouts.
    """
    local, kept = (environment.setting(name, "") for name in (CACHE_DIRECTORY, KEPT_CACHES))
    if not local or not kept:
        return None
    nodes = _nodes(layouts, session.world.node_of)
    mine = nodes[session.world.node]
    key = _key(arch, layouts, mine, session.world.device)
    archive = cache_archive.directory_of(Path(kept)) / f"{arch.family}-{key}{cache_archive.SUFFIX}"
    packs = nodes.index(mine) == session.world.node
    return KeptCaches(session, Path(local), archive, packs)


class KeptCaches:
    """One archive for all nodes of a job with the same work; the first of these nodes writes it.

    A failure here never ends a run: it then compiles, as without an archive.

    Args:
        session: this rank's session.
        local: the node's directory of compile caches.
        archive: the file on shared storage.
        packs: whether this node writes it.
    """

    def __init__(self, session: Session, local: Path, archive: Path, packs: bool) -> None:
        self._local, self._archive = local, archive
        self._control = session.control
        self._leads = session.world.local_rank == 0
        self._packs = self._leads and packs
        self._known: frozenset[str] = frozenset()
        self._num_steps = 0

    def unpack(self) -> str:
        """Fill the node's cache directory; every rank calls it before compiling anything.

        Returns:
            Text with the number of files and the archive; correct on the first rank of a node.
        """
        if self._leads:
            self._attempt(self._unpack, "not used")
        self._control.barrier()
        return f"files of compile caches: {len(self._known)}, from {self._archive}"

    def is_due(self) -> bool:
        """Count a step; return whether to pack after it: after steps 1, 2, 4, 8 ... of this start,
        since an evaluation or a new length may compile more than the first step did."""
        self._num_steps += 1
        return self._num_steps & (self._num_steps - 1) == 0

    def pack(self) -> None:
        """Write the archive if there are new files; every rank calls it, while none compiles."""
        self._control.barrier()
        if self._packs:
            self._attempt(self._pack, "not written")
        self._control.barrier()

    def _unpack(self) -> None:
        self._known = cache_archive.unpack(self._archive, self._local)

    def _pack(self) -> None:
        self._known = cache_archive.pack(self._local, self._archive, self._known)

    def _attempt(self, work: Callable[[], None], outcome: str) -> None:
        try:
            # The group that may write other files of a run would decide what ranks run.
            self._archive.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            cache_archive.check_directory(self._archive.parent)
            work()
        except Exception as error:  # A file of others makes tarfile raise whatever it has in it.
            what = f"{type(error).__name__}: {error}"
            _LOG.warning("compile caches: %s is %s: %s", self._archive, outcome, what)


def _nodes(layouts: RunLayouts, node_of: Collection[int]) -> list[Node]:
    """Return each node's work, by node; nodes with equal work compile the same code."""
    work: list[set[tuple[str, int]]] = [set() for _ in range(max(node_of) + 1)]
    nodes = list(node_of)
    for pool in layouts.pools.values():
        for group in pool.groups:
            for place, rank in enumerate(group):
                work[nodes[rank]].add((pool.name, place))
    return [frozenset(node) for node in work]


def _key(arch: Architecture, layouts: RunLayouts, node: Node, device: str) -> str:
    """Return a hash of what compiled code depends on. The caches have their own finer keys: a
    coarse key costs space, not correctness."""
    facts = {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _COMPILERS},
        "processor": _processor(),
        "gpu": _gpu(device),
        "model": asdict(arch),
        "layouts": layouts_of(layouts),
        "node": sorted(node),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    return [platform.machine(), *(line for line in lines if line.startswith(_PROCESSOR))]


def _gpu(device: str) -> Any:
    if device == "cpu":
        return None
    import torch

    return torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
