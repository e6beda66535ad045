"""Utilisation by operations that are counted one by one."""

import pytest

from verl_hpc.step.metrics import peak_of_device, utilisation
from verl_hpc.testing.local import tiny_architecture


def multiply_adds(arch, length):
    """Operations of a forward pass of a sequence, product by product."""
    hidden, q_size, kv_size = arch.hidden_size, arch.q_size, arch.kv_size
    found = length * hidden * arch.vocab_size
    for _ in range(arch.num_layers):
        found += length * hidden * (q_size + kv_size + kv_size)
        found += length * q_size * hidden
        found += 3 * length * hidden * arch.ffn_size
        found += 2 * length * length // 2 * q_size  # scores, and their sums of values
    return found


def test_operations_over_what_could_have_been_done():
    arch, lengths = tiny_architecture(), [4, 6, 10]
    operations = 3 * 2 * sum(multiply_adds(arch, length) for length in lengths)
    found = utilisation(arch, lengths, 2.0, 1e9)
    assert found == {"perf/mfu/actor": pytest.approx(operations / 2e9)}


def test_nothing_is_said_of_a_device_without_a_data_sheet(monkeypatch):
    assert utilisation(tiny_architecture(), [4], 1.0, 0.0) == {}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H100 NVL")
    for gib, peak in ((79, 989.4e12), (93, 835e12)):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda total=gib * 2**30: (0, total))
        peak_of_device.cache_clear()
        assert peak_of_device("bfloat16") == peak
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Riva 128")
    peak_of_device.cache_clear()
    assert peak_of_device("bfloat16") == 0.0
    peak_of_device.cache_clear()
