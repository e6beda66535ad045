"""Training beside two public rows: prime-rl's table of one H100, which also has random data.

Of benchmarks/results/BENCHMARKS.md of PrimeIntellect-ai/prime-rl: sequences of 16,384 tokens, RL
with all weights of Qwen3-0.6B, and with adapters of rank 16 of Qwen3-4B. Here an update takes one
such sequence; layers are recomputed. Sizes are those of the models, weights random. The loss is the
mean log-probability; theirs has a few operations per token more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.gpu.setting import (
    GIB,
    Figure,
    Setting,
    forget,
    mean_loss,
    published,
    random_sequences,
)
from benchmarks.gpu.train import speed_engine
from verl_hpc.config.lora import LoraConfig

_NUM_TOKENS = {"cuda": 16384, "cpu": 64}


@dataclass(frozen=True)
class Row:
    """What prime-rl has measured on one H100."""

    model: str
    trained: str
    lora: LoraConfig | None
    tokens_per_second: float
    memory_gib: float


ROWS = (
    Row("Qwen3-0.6B", "all weights", None, 11_900, 12.5),
    Row("Qwen3-4B", "adapters of rank 16", LoraConfig(rank=16), 6_230, 23.3),
)


def run(setting: Setting) -> list[Figure]:
    """Tokens per second and the most memory of each row, ours before theirs."""
    return [figure for row in ROWS for figure in _measured(setting, row)]


def _measured(setting: Setting, row: Row) -> list[Figure]:
    arch, num_tokens = published(setting, row.model), _NUM_TOKENS[setting.device.type]
    engine = speed_engine(setting, arch, max_tokens=num_tokens, lora=row.lora, recompute="full")
    sequences = random_sequences([num_tokens], arch.vocab_size, setting.device)
    loss = mean_loss(num_tokens - 1)
    seconds = setting.seconds_per_call(partial(engine.update, sequences, loss))
    label = f"{row.model}, {row.trained}"
    figures = [
        Figure(f"{label}: here", num_tokens / seconds, "tokens/s"),
        Figure(f"{label}: prime-rl on an H100", row.tokens_per_second, "tokens/s"),
    ]
    if setting.on_gpu:
        import torch

        most = torch.cuda.max_memory_allocated() / GIB
        figures += [
            Figure(f"{label}: device memory at most, here", most, "GiB"),
            Figure(f"{label}: device memory, prime-rl", row.memory_gib, "GiB"),
        ]
    forget(setting)
    return figures
