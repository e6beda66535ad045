"""A store that counts what it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.distributed_c10d import _world


class CountingStore(dist.Store):
    """`store`, and how often each of its functions was called."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store
        self.calls: Counter[str] = Counter()

    def set(self, *arguments):
        return self._count("set", arguments)

    def get(self, *arguments):
        return self._count("get", arguments)

    def wait(self, *arguments):
        return self._count("wait", arguments)

    def add(self, *arguments):
        return self._count("add", arguments)

    def check(self, *arguments):
        return self._count("check", arguments)

    def compare_set(self, *arguments):
        return self._count("compare_set", arguments)

    def _count(self, function, arguments):
        self.calls[function] += 1
        return getattr(self._store, function)(*arguments)


@contextmanager
def counted_store() -> Iterator[CountingStore]:
    """Inside, new groups meet at a store that counts, and is the job's."""
    default = dist.group.WORLD
    backend, store = _world.pg_map[default]
    counting = CountingStore(store)
    _world.pg_map[default] = (backend, counting)
    try:
        yield counting
    finally:
        _world.pg_map[default] = (backend, store)
