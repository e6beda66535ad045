"""What the parts share: shapes, engines with random weights, timing, and figures with limits."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import Fp8Config, ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.layout.architecture import Architecture, architecture_from
from verl_hpc.layout.json_file import read_json_object
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.runtime.session import Session

if TYPE_CHECKING:
    import torch

    from verl_hpc.engines.megatron.engine import MegatronEngine
    from verl_hpc.engines.protocol import TokenOutputs

GIB = 2**30
ONE_RANK = TrainLayout()
_MODELS = Path(__file__).parents[2] / "configs" / "model"
_TINY: Mapping[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
}


class CannotRunError(Exception):
    """This machine lacks something; the message says what."""


@dataclass(frozen=True)
class Omitted:
    """A figure that this machine could not give, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Figure:
    """A measured number and, if it proves something, what it must not be beyond."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """False also for NaN, if there is a limit."""
        above = self.at_most is None or self.value <= self.at_most
        return above and (self.at_least is None or self.value >= self.at_least)


@dataclass(frozen=True)
class Shapes:
    """Models, as fields of a Hugging Face configuration, and batches."""

    dtype: str
    small: Mapping[str, Any]
    """Compared with transformers on the CPU."""
    model: Mapping[str, Any]
    """Trained for its speed."""
    rollout: Mapping[str, Any]
    """Generates."""
    parity_lengths: Sequence[int]
    sequence_length: int
    num_sequences: int
    """Of one optimizer step."""
    max_tokens: int
    """Of one micro-batch."""
    matmul_size: int
    num_prompts: int
    prompt_length: int
    response_length: int
    log_prob_tolerance: float
    """Largest difference of log-probs in `dtype` from those in float32."""
    mean_tolerance: float
    """Largest mean difference of log-probs."""
    loss_tolerance: float
    """Relative."""
    norm_tolerance: float
    """Of the gradient norm, relative."""


def qwen2(hidden: int, ffn: int, layers: int, heads: int, vocab: int | None) -> dict[str, Any]:
    """A Qwen2.5 model: two key/value heads, tied embeddings, biases on q, k and v."""
    fields: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }
    return fields if vocab is None else fields | {"vocab_size": vocab}


GPU = Shapes(
    dtype="bfloat16",
    small=qwen2(512, 1408, 4, 8, None),
    model=qwen2(1536, 8960, 28, 12, 151936),
    rollout=qwen2(896, 4864, 24, 14, 151936),
    # One long, many short: attention gets more than one rectangle.
    parity_lengths=(900, 3, 9, 250, 40, 2, 64, 17, 600, 33),
    sequence_length=2048,
    num_sequences=16,
    max_tokens=8192,
    matmul_size=8192,
    num_prompts=64,
    prompt_length=128,
    response_length=128,
    log_prob_tolerance=0.15,
    mean_tolerance=0.02,
    loss_tolerance=0.005,
    norm_tolerance=0.02,
)
REHEARSAL = Shapes(
    dtype="float32",
    small=qwen2(64, 128, 2, 4, None),
    model=qwen2(64, 128, 2, 4, 512),
    rollout=qwen2(128, 256, 2, 4, 512),
    parity_lengths=(90, 3, 9, 25, 4, 2, 6, 17, 60, 33),
    sequence_length=32,
    num_sequences=4,
    max_tokens=64,
    matmul_size=256,
    num_prompts=4,
    prompt_length=8,
    response_length=8,
    log_prob_tolerance=1e-4,
    mean_tolerance=1e-5,
    loss_tolerance=1e-5,
    norm_tolerance=1e-4,
)


@dataclass
class Setting:
    """One run of the parts."""

    here: Session
    shapes: Shapes
    seconds: float
    """How long each timed loop may take."""
    directory: Path
    """Scratch, for models."""
    rollout_engine: str = "auto"
    """vllm, hf, or auto: vLLM where it is installed."""

    @property
    def device(self) -> torch.device:
        return self.here.device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            import torch

            torch.cuda.synchronize()

    def seconds_per_call(self, work: Callable[[], object], warm_up: int = 2) -> float:
        """Median over as many calls as fit into `seconds`, three at least."""
        for _ in range(warm_up):
            work()
        spent: list[float] = []
        while len(spent) < 3 or sum(spent) < self.seconds:
            self.synchronize()
            start = time.perf_counter()
            work()
            self.synchronize()
            spent.append(time.perf_counter() - start)
        return statistics.median(spent)


def architecture(fields: Mapping[str, Any]) -> Architecture:
    """The sizes of a Qwen2 model."""
    return architecture_from({"model_type": "qwen2", **fields})


def published(setting: Setting, model: str, **changes: Any) -> Architecture:
    """The sizes of a model of configs/model; tiny ones without a GPU.

    Args:
        model: name of its file.
        changes: fields that differ from it.
    """
    tiny = {} if setting.on_gpu else _TINY
    return architecture_from({**read_json_object(_MODELS / f"{model}.json"), **changes, **tiny})


def write_configuration(directory: Path, fields: Mapping[str, Any]) -> Path:
    """A model directory without weights: config.json and a byte tokenizer."""
    from verl_hpc.testing.tiny import save_tokenizer

    directory.mkdir(parents=True, exist_ok=True)
    save_tokenizer(directory)
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **fields}
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return directory


def build_engine(
    setting: Setting,
    arch: Architecture,
    *,
    optimizer: OptimizerConfig | None,
    max_tokens: int,
    fp8: Fp8Config | None = None,
    engine: Literal["megatron", "fsdp"] = "megatron",
    lora: LoraConfig | None = None,
    recompute: Literal["none", "full"] = "none",
) -> MegatronEngine:
    """A training engine on this one rank, its weights zero."""
    from verl_hpc.engines import factory

    factory.start_layouts(setting.here.groups, [ONE_RANK], seed=1)
    found = factory.build_engine(
        arch,
        ONE_RANK,
        ModelConfig(path="none", dtype=setting.shapes.dtype, fp8=fp8),
        ParallelConfig(engine=engine, recompute=recompute),
        head="language_model",
        optimizer=optimizer,
        max_tokens=max_tokens,
        name="model",
        lora=lora,
    )
    return cast("MegatronEngine", found)


def fill_randomly(shard_map: ShardMap, weights: Mapping[str, torch.Tensor], seed: int = 0) -> None:
    """Norms 1, everything else normal with standard deviation 0.02; the same for a seed."""
    import torch

    some = next(iter(weights.values()))
    generator = torch.Generator(some.device).manual_seed(seed)
    for region in shard_map.held_by(0):
        window = window_of(weights, region)
        if "norm" in region.tensor:
            window.fill_(1.0)
        else:
            window.normal_(0.0, 0.02, generator=generator)


def window_of(memory: Mapping[str, torch.Tensor], region: Any) -> torch.Tensor:
    """The memory of one region, in the shape of its box."""
    tensor = memory[region.view.name]
    offset = tensor.storage_offset() + region.view.offset
    return tensor.as_strided(region.box.shape, region.view.strides, offset)


def random_sequences(
    lengths: Sequence[int], vocab_size: int, device: torch.device, seed: int = 0
) -> list[torch.Tensor]:
    """Token sequences, the same on every device."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (n,), generator=generator).to(device) for n in lengths]


def mean_loss(
    num_tokens: int,
) -> Callable[[Sequence[int], Sequence[TokenOutputs]], tuple[torch.Tensor, dict[str, float]]]:
    """Cross-entropy per token, in the form that `MegatronEngine.update` takes."""

    def loss(
        indices: Sequence[int], outputs: Sequence[TokenOutputs]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        del indices
        sums = [o.log_probs.sum() for o in outputs if o.log_probs is not None]
        return -sum(sums[1:], start=sums[0]) / num_tokens, {}

    return loss


def forget(setting: Setting) -> None:
    """Give back the memory of what a part has dropped."""
    gc.collect()
    if setting.on_gpu:
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
