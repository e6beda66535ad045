"""Storages in page-locked memory and back. A GPU is the edge that is mocked: tensors in host memory
say that they are on one, and what torch would page-lock is ordinary memory that is counted."""

import pytest
import torch

from verl_hpc.engines.shared import offload
from verl_hpc.engines.shared.offload import Storages
from verl_hpc.planner.memory.transfer import page_locked


class OnGpu(torch.Tensor):
    is_cuda = True


@pytest.fixture
def allocated(monkeypatch):
    """Bytes of each page-locked allocation, as torch rounds them."""
    sizes, empty = [], torch.empty

    def counted(size, *, pin_memory=False, **options):
        if pin_memory:
            sizes.append(1 << (size - 1).bit_length())
        return empty(size, **options)

    monkeypatch.setattr(offload.torch, "empty", counted)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(offload.torch.cuda, name, lambda: None)
    return sizes


def on_gpu(*sizes):
    values = torch.randint(256, (sum(sizes),), dtype=torch.uint8).split(list(sizes))
    return [part.clone().as_subclass(OnGpu) for part in values]


@pytest.mark.parametrize(
    "sizes", [(3,), (64,), (10, 100, 30), (64, 64, 1), (1,) * 100, (200, 1, 63, 64, 500)]
)
def test_contents_come_back_and_share_pieces_that_are_kept(allocated, monkeypatch, sizes):
    monkeypatch.setattr(offload, "_PIECE_BYTES", 64)
    tensors = on_gpu(*sizes)
    storages = Storages(lambda: tensors)
    for trip in range(3):
        for tensor in tensors:
            tensor += trip
        before = [tensor.clone() for tensor in tensors]
        assert storages.release("me") == sum(sizes)
        assert not any(tensor.untyped_storage().nbytes() for tensor in tensors)
        storages.need("me")
        assert all(map(torch.equal, tensors, before))
        assert len(allocated) == -(-sum(sizes) // 64), "pieces are full, and taken once"
    assert sum(allocated) - sum(sizes) < 64


def test_the_ledger_knows_what_is_page_locked(allocated, monkeypatch):
    """One part takes more than a piece, the other one less."""
    monkeypatch.setattr(offload, "keep", lambda *_: None)
    for size in (2**28 + 5 * 2**20, 3 * 2**20):
        allocated.clear()
        offload.host_memory([size // 3, size - size // 3], page_locked=True)
        assert sum(allocated) == page_locked(size)


def test_other_sizes_are_not_taken_for_what_was_copied(allocated):
    """Parameters that were told to be unchanged are not copied twice, but a new size is."""
    tensors = on_gpu(8)
    storages = Storages(lambda: tensors, tells=True)
    for added in ([], on_gpu(4)):
        tensors += added
        before = [tensor.clone() for tensor in tensors]
        storages.release("me")
        storages.need("me")
        assert all(map(torch.equal, tensors, before))
    assert allocated == [8, 16]


def test_gradients_come_back_as_zeros_and_take_nohost_memory(allocated):
    tensors = on_gpu(8, 4)
    storages = Storages(lambda: tensors, keeps=False)
    storages.release("me")
    storages.need("me")
    assert not any(tensor.any() for tensor in tensors) and not allocated
