"""Megatron-core as training engine. Importing this package installs the CPU shim first."""

from verl_hpc.engines.megatron import shim

shim.install()
