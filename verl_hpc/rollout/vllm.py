"""vLLM inside this process: one engine per replica, one rank per GPU, no server.

The engine is built with empty weights; every value it generates with comes from a transfer into
its own parameters. Written against vLLM 0.32.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic
import torch
import vllm._custom_ops
import vllm.model_executor.layers.utils
from vllm import LLM, EngineArgs, SamplingParams

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.rollout.protocol import Response, Sampling, never
from verl_hpc.rollout.vllm_groups import replica_as_world, start_groups, stop_groups
from verl_hpc.runtime.world import World

_GIB = 2**30
_STEPS_BETWEEN_QUESTIONS = 32
"""Tokens a sequence gets before `interrupted` is asked again: often enough for a signal's lead."""


def join_groups(world: World, replicas: tuple[tuple[int, ...], ...], config: RolloutConfig) -> None:
    """What a rank of no replica does while the others build a `VllmEngine`.

    vLLM's groups are created by all ranks of the world.

    Raises:
        ConfigError: vLLM does not know an option.
    """
    options = _checked(config.engine_options, world.device)
    start_groups(world, replicas, _custom_all_reduce(options))
    stop_groups()


class VllmEngine:
    """A vLLM engine whose parameters are published as a shard map (see `RolloutEngine`).

    Args:
        world: this rank's place.
        arch: the model.
        model: directory with config.json; its weights are not read.
        tokenizer: directory of the tokenizer, for stop strings.
        replicas: ranks of every engine.
        config: sizes and limits.
        dtype: element type of the weights.
        seed: of vLLM's own generators; requests bring seeds of their own.

    Raises:
        ConfigError: vLLM does not know an option, does not take a value, or has not the memory.
    """

    def __init__(
        self,
        world: World,
        arch: Architecture,
        model: str,
        tokenizer: str,
        replicas: tuple[tuple[int, ...], ...],
        config: RolloutConfig,
        dtype: str,
        seed: int = 0,
    ) -> None:
        self.replicas = replicas
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.shard_map = vllm_shard_map(arch, replicas, dtype)
        self._can_sleep = world.device != "cpu"
        self._asleep = False
        if world.device == "cpu":
            # Otherwise linear weights are packed into handles that nothing can be written into
            # (small ones in bfloat16 by the second), and a tied output layer silently keeps its
            # old values.
            vllm._custom_ops._supports_onednn = False
            vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *_: False
        options = _checked(config.engine_options, world.device)
        start_groups(world, replicas, _custom_all_reduce(options))
        arguments = {
            "model": model,
            "tokenizer": tokenizer,
            "dtype": dtype,
            "seed": seed,
            "load_format": "dummy",
            "tensor_parallel_size": len(replicas[0]),
            "distributed_executor_backend": "external_launcher",
            "max_model_len": config.max_prompt_tokens + config.max_response_tokens,
            "max_num_seqs": config.max_num_seqs,
            "enforce_eager": config.enforce_eager or world.device == "cpu",
            "enable_sleep_mode": self._can_sleep,
            "logprobs_mode": "raw_logprobs" if config.filters else "processed_logprobs",
            "disable_log_stats": True,
            **_memory(config, world.device),
            **_scheduling(world.device),
            **options,
        }
        try:
            with _generators_untouched(), replica_as_world():
                self._llm = LLM(**arguments)
        except ValueError as error:
            stop_groups()
            raise ConfigError(
                f"rollout: vLLM cannot start with these settings: {_in_one_line(error)}"
            ) from error
        client = self._llm.llm_engine.engine_core
        # When vLLM's engine goes it destroys torch.distributed's groups, which are the job's.
        client._finalizer.detach()
        self._core = client.engine_core
        worker = self._core.model_executor.driver_worker.worker
        layers = self._llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
        backends = {x.attn_backend.get_name() for x in layers if hasattr(x, "attn_backend")}
        self.attention = ", ".join(sorted(backends))
        # Not the attribute: CUDA graphs may have wrapped it.
        self._model: torch.nn.Module = worker.model_runner.get_model()

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        return {name: p.detach() for name, p in self._model.named_parameters()}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        interrupted: Callable[[], bool] = never,
    ) -> list[Response | None]:
        assert not self._asleep, "the engine's weights were given up and not filled since"
        engine = self._llm.llm_engine
        names = [str(index) for index in range(len(prompts))]
        finished: dict[str, Response] = {}
        with _generators_untouched():
            for name, ids, seed in zip(names, prompts, seeds, strict=True):
                prompt = {"prompt_token_ids": list(ids)}
                engine.add_request(name, prompt, _parameters(sampling, seed))
            for count in itertools.count(1):
                if not engine.has_unfinished_requests():
                    break
                for output in engine.step():
                    if output.finished:
                        finished[output.request_id] = _response(output.outputs[0])
                if count % _STEPS_BETWEEN_QUESTIONS == 0 and interrupted():
                    engine.abort_request([name for name in names if name not in finished])
                    break
        return [finished.get(name) for name in names]

    def begin_update(self) -> None:
        if self._asleep:
            self._wake_up("weights")

    def finish_update(self) -> None:
        if self._asleep:
            self._wake_up("kv_cache")
            self._asleep = False
        forgotten = self._llm.reset_prefix_cache()
        assert forgotten, "requests were running during a weight update"

    def _wake_up(self, memory: str) -> None:
        # vLLM maps memory of its own; what torch keeps of freed blocks would be missing.
        torch.cuda.empty_cache()
        self._llm.wake_up(tags=[memory])

    def sleep(self) -> None:
        # Level 2 keeps no copy of the weights: the next transfer brings new ones anyway.
        if self._can_sleep and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = True

    def close(self) -> None:
        self._core.model_executor.shutdown()
        self._core.scheduler.shutdown()
        del self._llm, self._core, self._model
        # vLLM froze its objects out of the garbage collector's sight when it started; what is
        # left without them is not worth looking at again.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        stop_groups()


def _memory(config: RolloutConfig, device: str) -> dict[str, Any]:
    """Sizes of weights and cache, in the words of each platform."""
    if device == "cpu":
        return {"kv_cache_memory_bytes": int((config.kv_cache_gib or 1) * _GIB)}
    # Also with a cache of known size: vLLM insists that this share is free when it starts.
    sizes: dict[str, Any] = {"gpu_memory_utilization": config.gpu_memory_utilization}
    if config.kv_cache_gib is not None:
        sizes["kv_cache_memory_bytes"] = int(config.kv_cache_gib * _GIB)
    return sizes


_CUTS_PROMPTS = (
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "max_num_scheduled_tokens",
)


def _checked(options: Mapping[str, Any], device: str) -> Mapping[str, Any]:
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in options:
        if name not in known:
            raise ConfigError(
                f"rollout.engine_options.{name}: vLLM {vllm.__version__} has no such option; "
                f"{near_or_all(name, sorted(known))}"
            )
    for name in _CUTS_PROMPTS if device == "cpu" else ():
        if options.get(name):
            raise ConfigError(
                f"rollout.engine_options.{name}: it would cut prompts in pieces, which vLLM cannot "
                "on CPU ranks, since every request has a seed; leave it out"
            )
    return options


def _custom_all_reduce(options: Mapping[str, Any]) -> bool:
    return not options.get("disable_custom_all_reduce", False)


def _in_one_line(error: ValueError) -> str:
    """What is wrong; without the address of an explanation, and the repetition of all settings."""
    if isinstance(error, pydantic.ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}".removeprefix(": ")
            for detail in error.errors()
        )
    return str(error).split("\n")[0]


def _scheduling(device: str) -> dict[str, Any]:
    """On CPUs a prompt that is cut in two fails: vLLM sets back the request's generator there,
    which torch has for GPUs alone. Uncut, those that are too many for one step wait for the next.
    """
    return {"enable_chunked_prefill": False} if device == "cpu" else {}


def _parameters(sampling: Sampling, seed: int) -> SamplingParams:
    # Without a seed of its own a request draws from the process's generator, which may differ
    # between the ranks of a replica: they would sample different tokens without a word.
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=sampling.max_tokens,
        stop=list(sampling.stop) or None,
        detokenize=bool(sampling.stop),
        seed=seed,
        logprobs=0,
    )


def _response(output: Any) -> Response:
    log_probs = tuple(
        float(choices[token].logprob)
        for choices, token in zip(output.logprobs, output.token_ids, strict=True)
    )
    cut = output.finish_reason == "length"
    return Response(tuple(output.token_ids), log_probs, "length" if cut else "stop")


class _generators_untouched:  # noqa: N801 (a context manager)
    """Restores torch's generators: generation advances them even with seeds of its own."""

    def __enter__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
