"""Megatron-core as a training engine; importing this package installs the CPU shim."""

from verl_hpc.engines.megatron import shim

shim.install()
