"""Does the host keep up with the device? torch.profiler around one update of Qwen3-8B's layers.

An update takes the longer of two times: the host's to dispatch its operations, and the device's to
run them. The device is busy for the seconds that any kernel or copy of the profile covers. The host
dispatches for the seconds of the profiled update outside its waits for the device, which the
profiler itself makes longer: an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.setting import Figure, Setting, mean_loss, published, random_sequences
from benchmarks.gpu.train import speed_engine
from benchmarks.spans import union

if TYPE_CHECKING:
    from verl_hpc.engines.megatron.engine import MegatronEngine

# Of a device of 80 GB: weights, gradients and Adam's state of 2.2 billion parameters take 39 GB.
_CHANGES: dict[str, Any] = {"num_hidden_layers": 8, "tie_word_embeddings": True}
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def run(setting: Setting) -> list[Figure]:
    """Both times at few and at many tokens of a micro-batch."""
    arch = published(setting, "Qwen3-8B", **_CHANGES)
    sizes, length = ((4096, 16384), 2048) if setting.on_gpu else ((64, 256), 32)
    engine = speed_engine(setting, arch, max_tokens=max(sizes))
    return [
        figure
        for num_tokens in sizes
        for figure in _update(setting, engine, [length] * (num_tokens // length))
    ]


def _update(setting: Setting, engine: MegatronEngine, lengths: Sequence[int]) -> list[Figure]:
    from torch.profiler import ProfilerActivity, profile

    sequences = random_sequences(lengths, engine.arch.vocab_size, setting.device)
    loss = mean_loss(sum(lengths) - len(lengths))
    seconds = setting.seconds_per_call(lambda: engine.update(sequences, loss))
    on_gpu = [ProfilerActivity.CUDA] if setting.on_gpu else []
    with profile(activities=[ProfilerActivity.CPU, *on_gpu], acc_events=True) as profiler:
        start = time.perf_counter()
        engine.update(sequences, loss)
        setting.synchronize()
        profiled = time.perf_counter() - start
    label, num_layers = f"{sum(lengths)} tokens", engine.arch.num_layers
    return figures_of(label, num_layers, list(profiler.events()), seconds, profiled)


def figures_of(
    label: str, num_layers: int, events: Sequence[Any], seconds: float, profiled: float
) -> list[Figure]:
    """What the profiler saw in an update.

    Args:
        label: words before each figure's name.
        num_layers: of the model.
        events: the profiler's, of the host and of the device; microseconds.
        seconds: of an update without the profiler.
        profiled: seconds of the profiled update.
    """
    on_device = [event for event in events if event.device_type.name == "CUDA"]
    on_host = [event for event in events if event.device_type.name == "CPU"]
    waits = sum(event.cpu_time_total for event in on_host if event.name in _WAITS) / 1e6
    operations = sum(_is_operation(event) for event in on_host)
    figures = [
        Figure(f"{label}: an update", seconds, "s"),
        Figure(f"{label}: operations dispatched", operations),
        Figure(f"{label}: operations of a layer", operations / num_layers),
        Figure(f"{label}: host dispatches at most", profiled - waits, "s"),
    ]
    if on_device:
        spans = [(event.time_range.start, event.time_range.end) for event in on_device]
        busy = covered(spans) / 1e6
        figures += [
            Figure(f"{label}: kernels and copies", len(on_device)),
            Figure(f"{label}: device is busy", busy, "s"),
            Figure(f"{label}: device waits for the host", 100 * max(1 - busy / seconds, 0.0), "%"),
        ]
    return figures


def _is_operation(event: Any) -> bool:
    """Whether Python or autograd dispatched it, not another operation."""
    outer = event.cpu_parent
    return "::" in event.name and not (outer is not None and outer.name.startswith("aten::"))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans, in their unit."""
    return sum((stop - start for start, stop in union(spans)), start=0.0)
