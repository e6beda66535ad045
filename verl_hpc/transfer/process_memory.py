"""Reading the memory of another process of the same host.

One copy by the kernel, and nothing for the other process to do: several times as fast as messages
over sockets, which are copied in and out of the kernel. Linux allows it between processes of one
user (`process_vm_readv`, Cross Memory Attach, as MPI libraries use it), unless Yama's ptrace_scope
or a container's filter of system calls forbids it, or the two do not see each other's process
numbers.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from verl_hpc.runtime.control import Control

_MOST_RUNS = 1024
"""Pieces of memory that one call reads (IOV_MAX)."""
_PROOF_BYTES = 32
_Run = ctypes.c_size_t * 2
_LIBC = ctypes.CDLL(None, use_errno=True)
if hasattr(_LIBC, "process_vm_readv"):
    _LIBC.process_vm_readv.restype = ctypes.c_ssize_t
    _LIBC.process_vm_readv.argtypes = (
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
        *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
    )


def read_memory(process: int, address: int, runs: np.ndarray, to: torch.Tensor) -> None:
    """Fill a contiguous tensor of host memory.

    Args:
        process: number of the other process.
        address: in its memory.
        runs: (n, 2) int64, bytes from there to each piece, and the bytes of it.
        to: as many bytes as all pieces.

    Raises:
        OSError: it may not be read, or is not there.
    """
    place, left = to.data_ptr(), to.nbytes
    if len(runs) == 1:  # mostly; numpy would take as long as the copy
        _read(process, _Run(place, left), _Run(address + runs.item(0), left), 1, left)
        return
    for first in range(0, len(runs), _MOST_RUNS):
        part = runs[first : first + _MOST_RUNS].copy()
        part[:, 0] += address
        wanted = int(part[:, 1].sum())
        _read(process, _Run(place, wanted), part.ctypes.data, len(part), wanted)
        place, left = place + wanted, left - wanted
    assert left == 0


def _read(process: int, mine: Any, theirs: Any, num_runs: int, wanted: int) -> None:
    num_read = _LIBC.process_vm_readv(process, mine, 1, theirs, num_runs, 0)
    if num_read != wanted:
        number = ctypes.get_errno() if num_read < 0 else errno.EFAULT
        raise OSError(number, f"{os.strerror(number)}: memory of process {process}")


class Proof:
    """Random bytes in this process's memory; who finds them there may read it."""

    def __init__(self) -> None:
        self._words = np.frombuffer(os.urandom(_PROOF_BYTES), dtype=np.int64).copy()

    @property
    def words(self) -> tuple[int, ...]:
        """Numbers below 2^63 by which another process finds the proof, as long as this object
        lives."""
        return os.getpid(), self._words.ctypes.data, *self._words.tolist()

    @staticmethod
    def holds(words: Sequence[int]) -> bool:
        """Whether the memory of the process that sent these words can be read."""
        process, address, *expected = words
        proof = torch.zeros(len(expected), dtype=torch.int64)
        try:
            read_memory(process, address, np.array([[0, proof.nbytes]]), proof)
        except (OSError, AttributeError):  # not allowed, or no such call on this system
            return False
        return proof.tolist() == expected


def readable_processes(
    gather: Callable[[Sequence[int]], Sequence[Sequence[int]]], others: Sequence[int]
) -> list[int] | None:
    """Process numbers of all that gather, if each of them may read what it has to; else None.

    Args:
        gather: numbers of everyone, by rank.
        others: ranks whose memory this one has to read.
    """
    proof = Proof()
    everyone = gather(proof.words)
    can = all(Proof.holds(everyone[rank]) for rank in others)
    if not all(answer for (answer,) in gather((int(can),))):
        return None
    return [process for process, *_ in everyone]


def readable_neighbours(control: Control, node_of: Sequence[int]) -> dict[int, int]:
    """Process numbers of the other ranks of this node, if on every node all ranks may read each
    other's memory, else none; every rank calls it.

    Args:
        control: of the world.
        node_of: node index of each rank.
    """
    mine = node_of[control.rank]
    others = [r for r, node in enumerate(node_of) if node == mine and r != control.rank]
    processes = readable_processes(control.allgather, others)
    return {} if processes is None else {rank: processes[rank] for rank in others}
