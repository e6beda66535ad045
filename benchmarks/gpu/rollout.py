"""Generation with weights that a transfer brought, and its log-probs against the trainer's."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.gpu.setting import (
    GIB,
    Figure,
    Setting,
    architecture,
    build_engine,
    fill_randomly,
    forget,
    random_sequences,
    write_configuration,
)
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.rollout.protocol import Feed, Request, Response, RolloutEngine, Sampling
from verl_hpc.transfer.execute import Transfer

if TYPE_CHECKING:
    from verl_hpc.engines.megatron.engine import MegatronEngine

# The model's entropy is high, so a wrong weight shows at once; the engines round differently.
_MEAN_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}


def run(setting: Setting) -> list[Figure]:
    """Fill the engine, generate, compare; let it sleep, fill it again and generate the same."""
    shapes = setting.shapes
    arch = architecture(shapes.rollout)
    trainer = build_engine(setting, arch, optimizer=None, max_tokens=shapes.max_tokens)
    fill_randomly(trainer.shard_map, trainer.weights)
    engine = build(setting)
    transfer = Transfer(plan_transfer(trainer.shard_map, engine.shard_map, (0,)), 0)
    try:
        fill(engine, transfer, trainer)
        prompts = random_prompts(setting)
        _generate(setting, engine, prompts)  # the first call compiles and allocates
        start = time.perf_counter()
        responses = _generate(setting, engine, prompts)
        seconds = time.perf_counter() - start
        worst, mean = log_prob_difference(setting, trainer, prompts, responses)
        before = _free_bytes(setting)
        engine.sleep()
        freed = _free_bytes(setting) - before
        fill(engine, transfer, trainer)
        same = sum(
            a.tokens == b.tokens
            for a, b in zip(responses, _generate(setting, engine, prompts), strict=True)
        )
    finally:
        engine.close()
        forget(setting)
    num_tokens = sum(len(r.tokens) for r in responses)
    figures = [
        Figure("responses", len(responses)),
        Figure(f"generation by {engine_name(setting)}", num_tokens / seconds, "tokens/s"),
        Figure("log-prob, largest difference from the trainer", worst),
        Figure("log-prob, mean difference", mean, at_most=_MEAN_TOLERANCE[shapes.dtype]),
        Figure("same responses after sleep", 100 * same / len(responses), "%", at_least=100.0),
    ]
    if setting.on_gpu and engine_name(setting) == "vllm":
        weights = sum(spec.num_bytes for spec in engine.shard_map.tensors.values()) / GIB
        figures.append(Figure("freed by sleep", freed / GIB, "GiB", at_least=weights))
    return figures


def engine_name(setting: Setting) -> str:
    """vllm or hf."""
    if setting.rollout_engine != "auto":
        return setting.rollout_engine
    return "hf" if importlib.util.find_spec("vllm") is None else "vllm"


def build(setting: Setting) -> RolloutEngine:
    """The rollout engine of this one rank, its weights anything."""
    from verl_hpc.rollout.factory import build_rollout

    shapes = setting.shapes
    directory = write_configuration(setting.directory / "rollout", shapes.rollout)
    config = RolloutConfig(
        engine=engine_name(setting),
        max_prompt_tokens=shapes.prompt_length,
        max_response_tokens=shapes.response_length,
        max_num_seqs=shapes.num_prompts,
        gpu_memory_utilization=0.3,
        kv_cache_gib=None if setting.on_gpu else 0.1,
    )
    arch = architecture(shapes.rollout)
    engine = build_rollout(
        setting.here.world, arch, str(directory), str(directory), ((0,),), config, shapes.dtype
    )
    assert engine is not None
    return engine


def fill(engine: RolloutEngine, transfer: Transfer, trainer: MegatronEngine) -> None:
    """Bring the trainer's weights into the engine."""
    engine.begin_update()
    transfer.run(trainer.weights, engine.weights, engine.dtype)
    engine.finish_update()


def random_prompts(setting: Setting) -> list[list[int]]:
    """Prompts of random tokens, all of the same length."""
    import torch

    shapes = setting.shapes
    lengths = [shapes.prompt_length] * shapes.num_prompts
    vocab_size = architecture(shapes.rollout).vocab_size
    return [s.tolist() for s in random_sequences(lengths, vocab_size, torch.device("cpu"), 7)]


def _generate(
    setting: Setting, engine: RolloutEngine, prompts: Sequence[Sequence[int]]
) -> list[Response]:
    feed = Feed([Request(prompt, seed) for seed, prompt in enumerate(prompts)])
    engine.generate(feed, Sampling(setting.shapes.response_length))
    return feed.responses


def log_prob_difference(
    setting: Setting,
    trainer: MegatronEngine,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Response],
) -> tuple[float, float]:
    """Largest and mean difference over all sampled tokens."""
    import torch

    texts = [
        torch.tensor([*prompt, *response.tokens], device=setting.device)
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    ours = [
        output.log_probs[len(prompt) - 1 :].cpu()
        for prompt, output in zip(prompts, trainer.infer(texts), strict=True)
        if output.log_probs is not None
    ]
    theirs = [torch.tensor(response.log_probs) for response in responses]
    difference = (torch.cat(ours) - torch.cat(theirs)).abs()
    return float(difference.max()), float(difference.mean())


def _free_bytes(setting: Setting) -> int:
    if not setting.on_gpu:
        return 0
    import torch

    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])
