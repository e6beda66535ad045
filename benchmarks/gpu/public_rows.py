"""Training beside two public rows: prime-rl's table of one H100, which also has random data.

Of benchmarks/results/BENCHMARKS.md of PrimeIntellect-ai/prime-rl: sequences of 16,384 tokens, RL
with all weights of Qwen3-0.6B, and with adapters of rank 16 of Qwen3-4B. Here an update takes one
such sequence; layers are recomputed. Sizes are those of the models, weights random. The loss is the
mean log-probability; theirs has a few operations per token more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import (
    GIB,
    Figure,
    Setting,
    build_engine,
    fill_randomly,
    forget,
    mean_loss,
    random_sequences,
)
from benchmarks.gpu.train import OPTIMIZER
from verl_hpc.config.lora import LoraConfig
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.json_file import read_json_object

_MODELS = Path(__file__).parents[2] / "configs" / "model"
_NUM_TOKENS = {"cuda": 16384, "cpu": 64}
_ON_CPU: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
}


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
    shrunk = {} if setting.on_gpu else _ON_CPU
    arch = architecture_from(read_json_object(_MODELS / f"{row.model}.json") | shrunk)
    num_tokens = _NUM_TOKENS[setting.device.type]
    engine = build_engine(
        setting, arch, optimizer=OPTIMIZER, max_tokens=num_tokens, lora=row.lora, recompute="full"
    )
    fill_randomly(engine.shard_map, engine.weights)
    engine.weights_changed()
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
