"""Shared pieces of the MPI tier: tiny models that all ranks see, transformers as reference."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from zlib import crc32

import pytest
import torch

from verl_hpc.runtime.groups import Groups
from verl_hpc.testing.tiny import make_tiny_model

MANY_HEADS = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}
"""So that layouts have something to divide; too small for vLLM, unless a test says head_dim."""
VLLM_HEADS = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Heads of 32, the smallest that vLLM's attention on CPUs takes."""


@pytest.fixture(scope="session")
def shared_directory(here):
    """One temporary directory for all ranks."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("VERL_HPC_TESTS_SCRATCH")) as mine:
        yield Path(here.control.broadcast(mine))
        here.control.barrier()


@pytest.fixture
def groups():
    """Process groups that are closed after the test."""
    made = Groups()
    yield made
    made.close()


@pytest.fixture(scope="session")
def tiny_model(here, shared_directory):
    """`tiny_model(family, tied, **sizes)` gives the directory of a model with noisy weights."""

    def make(family: str = "llama", tied: bool = False, **sizes) -> Path:
        label = crc32(repr(sorted(sizes.items())).encode())
        directory = shared_directory / f"{family}-{'tied' if tied else 'untied'}-{label}"
        if here.world.rank == 0 and not directory.exists():
            sizes = MANY_HEADS | {"num_hidden_layers": 2} | sizes
            make_tiny_model(directory, family, tied=tied, noise=0.05, **sizes)
        here.control.barrier()
        return directory

    return make


class Reference:
    """A transformers model and what it computes of a list of sequences."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        )
        # transformers trains no embedding of the padding token; here it is a token like others.
        self.model.get_input_embeddings().padding_idx = None

    def log_probs(self, sequence: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
        """(L - 1,) log-probabilities of tokens 1.. of one sequence, differentiable."""
        logits = self.model(sequence[None]).logits[0, :-1].float() / temperature
        return logits.log_softmax(-1).gather(-1, sequence[1:, None])[:, 0]

    @torch.no_grad()
    def outputs(self, sequences: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Log-probs of each sequence, and the entropy of the distributions that they are of."""
        found = []
        for sequence in sequences:
            log_p = self.model(sequence[None]).logits[0, :-1].float().log_softmax(-1)
            chosen = log_p.gather(-1, sequence[1:, None])[:, 0]
            found.append((chosen, -(log_p.exp() * log_p).sum(-1)))
        return found


@pytest.fixture(scope="session")
def reference():
    """`reference(directory)`, cached."""
    known: dict[Path, Reference] = {}

    def load(directory: Path) -> Reference:
        if directory not in known:
            known[directory] = Reference(directory)
        return known[directory]

    return load
