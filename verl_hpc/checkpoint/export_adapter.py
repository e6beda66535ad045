"""Export a step's adapters as a directory that PEFT loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from verl_hpc.checkpoint.peft import TENSORS, write_adapter
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.run_state import AdapterState
from verl_hpc.checkpoint.weights import Weights
from verl_hpc.errors import CheckpointError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.box import Box
from verl_hpc.layout.heads import SCORE_HEAD
from verl_hpc.transfer.checksum import checksum


@dataclass(frozen=True)
class StoredAdapter:
    """The adapters of a step's component."""

    step: Step
    component: str
    state: AdapterState

    def write(self, out: Path, dtype: str | None) -> int:
        """Write the adapters in PEFT's format, and read them back; return the number of parameters.

        Args:
            out: existing directory.
            dtype: element type; the stored one if None.

        Raises:
            CheckpointError: they read back differently.
        """
        shard_map = self.step.component(self.component)
        arch = read_architecture(self.step.hf_directory(self.component))
        weights = Weights(arch, shard_map, self.step.reader(), self.step.path)
        boxes = {name: Box.whole(spec.shape) for name, spec in shard_map.tensors.items()}
        tensors = weights.read(boxes, dtype)
        head = SCORE_HEAD if SCORE_HEAD in tensors else None
        state = self.state
        write_adapter(out, tensors, base=state.base, rank=state.rank, alpha=state.alpha, head=head)
        sums = sorted(int(checksum(tensor)) for tensor in tensors.values())
        if sorted(int(checksum(t)) for t in load_file(out / TENSORS).values()) != sums:
            raise CheckpointError(
                f"{out}: adapters read back differently than they were written; is the file "
                "system sound?"
            )
        return sum(box.num_elements for box in boxes.values())


def stored_adapter(step: Step, component: str) -> StoredAdapter | None:
    """Return a component's adapters; None if it holds all weights of a model."""
    if not any(".lora_" in name for name in step.component(component).tensors):
        return None
    return StoredAdapter(step, component, step.state.adapters[component])
