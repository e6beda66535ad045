"""Megatron-core as a training engine; importing this package installs the CPU shim."""

import sys

from verl_hpc.engines.megatron import shim

# Megatron-core imports these trackers where they are installed, for loggers that are not used here:
# hundreds of files, and half a second of each rank's start.
hidden = {"tensorboard", "wandb"} - sys.modules.keys()
sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: cannot be imported
shim.install()

for name in hidden:
    del sys.modules[name]
