"""A training engine in this process whose model is tiny, so that tests take milliseconds.

The model reads a sequence by its running mean and its newest token. It is small enough to write
down, every output is causal, and its parameters have the names and shapes of a decoder's ends, so
that transfers and checkpoints work with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.module import ModuleEngine, here, outputs_of_row
from verl_hpc.engines.protocol import OutputOptions, TokenOutputs
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import HEAD_TENSORS, Head
from verl_hpc.layout.shard_map import ShardMap, TensorSpec
from verl_hpc.runtime.one_rank import LocalChannel as LocalChannel
from verl_hpc.runtime.one_rank import LocalControl as LocalControl

EMBEDDING = "model.embed_tokens.weight"


def tiny_architecture() -> Architecture:
    """Return sizes for a model of this module; it has no layers, whose sizes do not matter."""
    return Architecture("llama", 1, 6, 8, 2, 1, 3, 12, False, dtype="float32")


class TinyModel(torch.nn.Module):
    """h_i = tanh(mean(e_0 .. e_i) + e_i), outputs h_i W, with embeddings e and the head's W.

    Args:
        arch: sizes, of which vocab_size and hidden_size are used.
        head: kind of the output layer W.
        seed: seed of the weights.
    """

    def __init__(self, arch: Architecture, head: Head = "language_model", seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        num_outputs = 1 if head in HEAD_TENSORS else arch.vocab_size
        self.names = {"embedding": EMBEDDING, "head": HEAD_TENSORS.get(head, "lm_head.weight")}
        """Logical names of the parameters."""
        for name, rows in (("embedding", arch.vocab_size), ("head", num_outputs)):
            weight = torch.randn((rows, arch.hidden_size), generator=generator)
            self.register_parameter(name, torch.nn.Parameter(weight))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (L,) int64 to (L, outputs) float32; row i depends on tokens 0 to i."""
        embedded = self.embedding[tokens]
        counts = torch.arange(1, len(tokens) + 1)[:, None]
        hidden = torch.tanh(embedded.cumsum(0) / counts + embedded)
        return hidden @ self.head.T

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Return the parameters by logical name."""
        return {self.names[name]: p.detach() for name, p in self.named_parameters()}

    @property
    def shard_map(self) -> ShardMap:
        """Shard map with everything on rank 0."""
        return here({n: TensorSpec(tuple(w.shape), "float32") for n, w in self.weights.items()})


class LocalEngine(ModuleEngine):
    """`TrainingEngine` on one rank: `TinyModel` and AdamW.

    Args:
        arch: sizes of the model; `tiny_architecture` if None.
        head: kind of its outputs.
        optimizer: None if it is not trained; the schedule is ignored.
        seed: seed of the weights.
        micro_batch: sequences per call of the loss; the last call may have fewer.
    """

    def __init__(
        self,
        arch: Architecture | None = None,
        head: Head = "language_model",
        optimizer: OptimizerConfig | None = None,
        seed: int = 0,
        micro_batch: int = 2,
    ) -> None:
        arch, self.micro_batch = arch or tiny_architecture(), micro_batch
        if optimizer is not None:
            shown = {"beta1", "beta2", "clip_grad", "epsilon", "lr", "weight_decay"}
            optimizer = OptimizerConfig(**optimizer.model_dump(include=shown))
        self._model = TinyModel(arch, head, seed)
        super().__init__(
            self._model, arch, head, optimizer, torch.device("cpu"), names=self._model.names
        )
        self.gradients = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        """Gradients of the last update, before clipping."""
        for name, parameter in self.parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._keep_gradient, name))

    def _keep_gradient(self, name: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        self.gradients[name] = parameter.grad.clone()

    def _micro_batches(
        self, sequences: Sequence[torch.Tensor], together: int
    ) -> Iterator[Sequence[int]]:
        size = max(self.micro_batch // together, 1) * together
        for start in range(0, len(sequences), size):
            yield range(len(sequences))[start : start + size]

    def _forward(
        self,
        sequences: Sequence[torch.Tensor],
        indices: Sequence[int],
        temperature: float,
        wanted: OutputOptions,
    ) -> list[TokenOutputs]:
        outputs = []
        for i in indices:
            rows = self._model(sequences[i])
            if self.head == "score":
                outputs.append(TokenOutputs(scores=rows[-1]))
            elif self.head == "value":
                outputs.append(TokenOutputs(values=rows[:-1, 0]))
            else:
                chosen, of_row = sequences[i][1:], wanted.of([i])
                outputs.append(outputs_of_row(rows[:-1], chosen, temperature, of_row))
        return outputs
