"""Sets of tokens as bits."""

import numpy as np
import pytest
import torch

from verl_hpc.algorithms.allowed import unpacked


@pytest.mark.parametrize("vocabulary", [1, 8, 9, 259])
def test_bits_come_back_and_no_bit_is_all(vocabulary):
    chosen = np.random.default_rng(0).random((5, vocabulary)) < 0.5
    chosen[:, 0], chosen[2] = True, False
    packed = torch.from_numpy(np.packbits(chosen, axis=-1, bitorder="little"))
    expected = chosen.copy()
    expected[2] = True
    assert torch.equal(unpacked(packed, vocabulary), torch.from_numpy(expected))
