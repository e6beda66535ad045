"""Fingerprints: equal bits agree, any small corruption does not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.layout.shard_map import ITEM_BYTES
from verl_hpc.transfer.checksum import checksum, position_weighted_sum

DTYPES = [getattr(torch, name) for name in ITEM_BYTES]
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def on_gpus(tensor):
    """What GPUs compute."""
    return position_weighted_sum(tensor.contiguous().view(-1).view(torch.uint8))


BOTH = [checksum, on_gpus]
"""On CPUs, and what GPUs compute, which runs here as well."""

NARROW = [dtype for dtype in DTYPES if dtype.itemsize < 8]


def random_bits(seed, size, dtype):
    """A one-dimensional tensor whose bits are arbitrary, NaNs and infinities included."""
    data = np.random.default_rng(seed).integers(0, 256, size * dtype.itemsize, dtype=np.uint8)
    if dtype == torch.bool:
        data %= 2
    return torch.from_numpy(data).view(dtype)


tensors = st.builds(random_bits, st.integers(0, 2**32), st.integers(1, 40), st.sampled_from(DTYPES))


@given(tensors)
@pytest.mark.parametrize("algorithm", BOTH)
def test_equal_bits_have_equal_sums(algorithm, tensor):
    found = algorithm(tensor)
    assert found.dtype == torch.int64
    assert found.shape == ()
    assert found == algorithm(tensor.clone())


@given(st.data(), st.integers(0, 2**32), st.integers(1, 40))
@pytest.mark.parametrize("algorithm, dtypes", [(checksum, DTYPES), (on_gpus, NARROW)])
def test_any_single_flipped_bit_is_seen(algorithm, dtypes, data, seed, size):
    dtype = data.draw(st.sampled_from([d for d in dtypes if d != torch.bool]))
    tensor = random_bits(seed, size, dtype)
    place = data.draw(st.integers(0, size * dtype.itemsize - 1))
    flipped = tensor.clone()
    flipped.view(torch.uint8)[place] ^= 1 << data.draw(st.integers(0, 7))
    assert algorithm(tensor) != algorithm(flipped)


@given(st.data(), st.integers(0, 2**32), st.integers(2, 40))
@pytest.mark.parametrize("algorithm, dtypes", [(checksum, DTYPES), (on_gpus, NARROW)])
def test_two_elements_that_change_places_are_seen(algorithm, dtypes, data, seed, size):
    tensor = random_bits(seed, size, data.draw(st.sampled_from(dtypes)))
    a, b = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    words = tensor.view(WORDS[tensor.element_size()])
    swapped = words.clone()
    swapped[a], swapped[b] = words[b], words[a]
    same = algorithm(tensor) == algorithm(swapped.view(tensor.dtype))
    assert same == (words[a] == words[b])


@given(st.integers(0, 2**32), st.sampled_from(DTYPES), st.integers(1, 5), st.integers(1, 5))
def test_elements_count_and_not_how_they_lie(seed, dtype, rows, columns):
    """A transposed, a strided and a broadcast view against a contiguous copy of each."""
    matrix = random_bits(seed, 2 * rows * columns, dtype).view(2 * rows, columns)
    for view in (matrix.t(), matrix[::2], matrix[:, -1], matrix[0].expand(3, columns)):
        assert checksum(view) == checksum(view.clone(memory_format=torch.contiguous_format))


@pytest.mark.parametrize("algorithm", BOTH)
def test_shape_does_not_count_and_order_length_and_signs_do(algorithm):
    matrix, parameter = torch.arange(6.0).view(2, 3), torch.nn.Parameter(torch.ones(3))
    assert algorithm(matrix) == algorithm(matrix.view(6)) != algorithm(matrix.t())
    assert algorithm(torch.tensor(3.0)) == algorithm(torch.tensor([3.0]))
    assert algorithm(torch.tensor([0.0])) != algorithm(torch.tensor([-0.0]))
    assert checksum(torch.zeros(4)) != checksum(torch.zeros(5))
    assert checksum(parameter) == checksum(torch.ones(3))
    assert not checksum(parameter).requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_tensor(dtype):
    assert checksum(torch.empty(0, dtype=dtype)) == checksum(torch.empty(0, 7, dtype=dtype))


@pytest.mark.parametrize("row", [1, 7, 1 << 12])
@pytest.mark.parametrize("start", [0, 2, 3])
def test_the_weighted_sum_against_its_definition(monkeypatch, row, start):
    """Rows of any length, bytes that do not fill a word, memory that is not aligned."""
    monkeypatch.setattr("verl_hpc.transfer.checksum._ROW", row)
    flat = random_bits(3, 4 * 9000 + 3, torch.uint8)[start:]
    padded = np.concatenate([flat.numpy(), np.zeros(-len(flat) % 4, np.uint8)])
    words = [int(word) for word in padded.view(np.int32)]
    expected = sum(word * (2 * p + 1) for p, word in enumerate(words))
    assert int(position_weighted_sum(flat)) % 2**64 == expected % 2**64


@given(st.integers(0, 2**32), st.integers(2, 400), st.integers(0, 31), st.data())
def test_two_bits_of_the_same_weight_are_seen(seed, size, bit, data):
    """A bad lane of memory flips such bits. Sums of 64-bit words miss two flipped signs."""
    words = random_bits(seed, size, torch.int32)
    flipped = words.clone()
    for place in data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True)):
        flipped[place] ^= -(1 << 31) if bit == 31 else 1 << bit
    sums = [position_weighted_sum(w.view(torch.uint8)) for w in (words, flipped)]
    assert sums[0] != sums[1]
