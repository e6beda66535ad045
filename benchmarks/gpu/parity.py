"""Megatron-core's forward and backward pass against transformers in float32 on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.setting import Figure, Setting, build_engine, mean_loss, random_sequences
from verl_hpc.config.model import OptimizerConfig
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.testing.tiny import make_tiny_model
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import SafetensorsReader

if TYPE_CHECKING:
    import torch

    from verl_hpc.engines.megatron.engine import MegatronEngine


def run(setting: Setting) -> list[Figure]:
    """Log-probs, entropy, loss and gradient norm of one packed batch."""
    shapes = setting.shapes
    directory = make_tiny_model(setting.directory / "parity", "qwen2", noise=0.02, **shapes.small)
    engine = build_engine(
        setting,
        read_architecture(directory),
        optimizer=OptimizerConfig(lr=1e-6, clip_grad=0.0),
        max_tokens=sum(shapes.parity_lengths),
    )
    load(engine, directory)
    sequences = random_sequences(shapes.parity_lengths, engine.arch.vocab_size, setting.device)
    found = engine.infer(sequences)
    num_tokens = sum(len(s) - 1 for s in sequences)
    metrics = engine.update(sequences, mean_loss(num_tokens))
    log_probs, entropy, loss, norm = _reference(directory, [s.cpu() for s in sequences])
    ours = _flat([o.log_probs for o in found])
    difference = (ours - log_probs).abs()
    entropies = (_flat([o.entropy for o in found]) - entropy).abs()
    relative_loss = abs(metrics["loss"] / loss - 1)
    relative_norm = abs(metrics["grad_norm"] / norm - 1)
    tolerance, mean = shapes.log_prob_tolerance, shapes.mean_tolerance
    return [
        Figure("log-prob, largest difference", float(difference.max()), at_most=tolerance),
        Figure("log-prob, mean difference", float(difference.mean()), at_most=mean),
        Figure("entropy, largest difference", float(entropies.max()), at_most=tolerance),
        Figure("loss, relative difference", relative_loss, at_most=shapes.loss_tolerance),
        Figure("gradient norm, relative difference", relative_norm, at_most=shapes.norm_tolerance),
    ]


def load(engine: MegatronEngine, directory: Path) -> None:
    """Fill an engine from a Hugging Face directory."""
    plan = plan_transfer(safetensors_shard_map(directory), engine.shard_map, (0,))
    Transfer(plan, 0, SafetensorsReader()).run({}, engine.weights, engine.dtype)
    engine.weights_changed()


def _flat(parts: Sequence[torch.Tensor | None]) -> torch.Tensor:
    import torch

    return torch.cat([part.cpu() for part in parts if part is not None])


def _reference(
    directory: Path, sequences: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, float, float]:
    """Log-probs, entropies, mean loss and gradient norm, each sequence by itself."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    # transformers trains no embedding of the padding token; here it is a token like others.
    model.get_input_embeddings().padding_idx = None
    log_probs, entropies = [], []
    for sequence in sequences:
        rows = model(sequence[None]).logits[0, :-1].log_softmax(-1)
        log_probs.append(rows.gather(-1, sequence[1:, None])[:, 0])
        entropies.append(-(rows.detach().exp() * rows.detach()).sum(-1))
    together = torch.cat(log_probs)
    loss = -together.mean()
    loss.backward()
    norms = [p.grad.norm() for p in model.parameters()]
    norm = torch.stack(norms).norm()
    return together.detach(), torch.cat(entropies), float(loss.detach()), float(norm)
