"""The copy of what a rank saves."""

import pytest
import torch

from verl_hpc.checkpoint.host_copy import HostCopy
from verl_hpc.checkpoint.tensor_file import Stored, TensorFile

STORED = [Stored("a", torch.float32, (3,)), Stored("b", torch.float32, (5,))]


def test_a_tensor_too_few_is_an_error(tmp_path):
    """Not a file with what the last save had of it."""
    copy = HostCopy(STORED, on_gpu=False)
    with pytest.raises(ValueError, match="shorter"):
        copy.take([torch.ones(3)])
    with pytest.raises(ValueError, match="shorter"):
        TensorFile(STORED).write(tmp_path / "file.h5", list(copy.parts())[:1])
