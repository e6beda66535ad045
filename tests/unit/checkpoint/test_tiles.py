"""Tensors come back from their tiles, plain HDF5 reads them, and slices touch few bytes."""

import random
from math import prod

import h5py
import numpy as np
import pytest
import torch

from verl_hpc.checkpoint import datasets
from verl_hpc.checkpoint.datasets import open_file, read_dataset
from verl_hpc.checkpoint.tensor_file import Stored, write_tensors
from verl_hpc.checkpoint.tiles import TILE_BYTES, num_tiles, tile_shape
from verl_hpc.layout.box import Box

SHAPES = [(1,), (5,), (300_001,), (7, 3), (1000, 1000), (1021, 769), (3, 4, 5), (2, 700, 900),
          (4096, 1), (1, 300_000), (0,), (0, 4)]  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiles") / "file.h5"
    torch.manual_seed(0)
    tensors = {f"a/{i}": torch.randn(shape) for i, shape in enumerate(SHAPES)}
    tensors["turned"] = torch.randn(800, 1000).T
    tensors["a/half"] = torch.randn(600, 2000).bfloat16()
    write_tensors(path, tensors, key="k")
    return path, tensors


def test_plain_hdf5_reads_what_was_written(written):
    path, tensors = written
    with h5py.File(path) as file:
        assert file.attrs["key"] == "k"
        for name, tensor in tensors.items():
            if tensor.dtype == torch.float32:
                assert np.array_equal(file[name][...], tensor.numpy()), name


def test_any_box_is_read_as_it_was_written(written):
    path, tensors = written
    chance = random.Random(1)
    with open_file(path) as file:
        for name, tensor in tensors.items():
            assert read_dataset(file, name).equal(tensor), name
            for _ in range(20):
                cuts = [sorted(chance.choices(range(n + 1), k=2)) for n in tensor.shape]
                box = Box(tuple(a for a, _ in cuts), tuple(b for _, b in cuts))
                assert read_dataset(file, name, box).equal(tensor[box.slices]), (name, box)


@pytest.mark.parametrize("shape", [(8192, 8192), (152064, 8192), (28672,), (64, 2048, 768)])
@pytest.mark.parametrize("item", [2, 4])
def test_tiles_are_small_and_lose_little_at_the_edges(shape, item):
    tile = tile_shape(shape, item)
    assert TILE_BYTES // 4 <= prod(tile) * item <= TILE_BYTES or prod(shape) * item < TILE_BYTES
    assert prod(num_tiles(shape, tile)) * prod(tile) <= 1.01 * prod(shape)


def test_an_eighth_of_the_columns_reads_an_eighth_of_the_bytes(tmp_path, monkeypatch):
    write_tensors(tmp_path / "x.h5", {"x": torch.randn(2048, 4096)})
    read = []
    sum_of = datasets.xxhash.xxh3_64_intdigest
    monkeypatch.setattr(
        datasets.xxhash, "xxh3_64_intdigest", lambda data: read.append(len(data)) or sum_of(data)
    )
    with open_file(tmp_path / "x.h5") as file:
        read_dataset(file, "x", Box((0, 512), (2048, 1024)))
    assert sum(read) == 2048 * 512 * 4


def test_what_a_file_takes_is_what_its_tensors_take(tmp_path):
    """But for the layout: some kilobytes a tensor."""
    tensors = {f"t{i}": torch.randn(300, 1000) for i in range(20)}
    write_tensors(tmp_path / "x.h5", tensors)
    stored = [Stored(n, t.dtype, tuple(t.shape)) for n, t in tensors.items()]
    least = sum(s.num_bytes for s in stored)
    assert least <= (tmp_path / "x.h5").stat().st_size <= least + len(tensors) * 8192
