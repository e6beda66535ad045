"""A store that counts what it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod

import torch.distributed as dist
from torch.distributed.distributed_c10d import _world


class CountingStore(dist.Store):
    """`store`, and how often each of its functions was called."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store
        self.calls: Counter[str] = Counter()

    def _count(self, function, *arguments):
        self.calls[function] += 1
        return getattr(self._store, function)(*arguments)


for _function in ("set", "get", "wait", "add", "check", "compare_set"):
    setattr(CountingStore, _function, partialmethod(CountingStore._count, _function))


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
