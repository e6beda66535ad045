"""Megatron-core as a training engine; importing this package installs the CPU shim."""

import sys

from verl_hpc.engines.megatron import shim

# Megatron-core imports Weights & Biases where it is installed, for servers that are not used here;
# hundreds of files and half a second of each rank's start.
hidden = "wandb" not in sys.modules
if hidden:
    sys.modules["wandb"] = None  # type: ignore[assignment]
shim.install()
import megatron.core  # noqa: E402, F401

if hidden:
    del sys.modules["wandb"]
