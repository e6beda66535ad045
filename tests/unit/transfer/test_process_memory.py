"""Reading memory as neighbours do, here this process's own."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.transfer import reads
from verl_hpc.transfer.process_memory import Proof, read_memory


def test_more_pieces_than_one_call_takes():
    source = torch.arange(10_000, dtype=torch.int32)
    places = np.arange(0, 10_000, 3)
    runs = np.stack([4 * places, np.full_like(places, 4)], axis=1)
    found = torch.zeros(len(places), dtype=torch.int32)
    read_memory(os.getpid(), source.data_ptr(), runs, found)
    assert torch.equal(found, source[::3])


def test_what_cannot_be_read_is_an_error():
    found = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(OSError, match=r"address: memory of process \d"):
        read_memory(os.getpid(), 16, np.array([[0, 8]]), found)
    with pytest.raises(OSError, match="No such process: memory of process 4194304"):
        read_memory(1 << 22, found.data_ptr(), np.array([[0, 8]]), found)


def test_a_proof_holds_where_its_bytes_are_found():
    proof = Proof()
    process, address, *words = proof.words
    assert Proof.holds(proof.words)
    assert not Proof.holds((process, address, words[0] + 1, *words[1:]))
    assert not Proof.holds((1 << 22, address, *words))


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=3),
    st.sampled_from([torch.uint8, torch.bfloat16, torch.float32]),
    st.integers(1, 64),
)
def test_pieces_are_the_rows_of_a_window(dims, dtype, piece_bytes):
    """Windows with gaps of any size behind each dimension, in memory of their own."""
    strides, size = [], 1
    for count, gap in reversed(dims):
        strides.insert(0, size)
        size = size * count + gap
    shape = [count for count, _ in dims]
    whole = torch.arange(size).to(dtype)
    window = whole.as_strided(shape, strides)
    copied = torch.zeros(shape, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "PIECE_BYTES", piece_bytes)
        pieces = list(reads._pieces(shape, strides, whole.element_size()))
    for rows, runs in pieces:
        assert copied[rows].nbytes <= max(piece_bytes, copied[:1].nbytes)
        read_memory(os.getpid(), whole.data_ptr(), runs, copied[rows])
    assert torch.equal(copied, window)
