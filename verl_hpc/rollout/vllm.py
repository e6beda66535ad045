"""vLLM inside this process: one engine per replica, one rank per GPU, no server.

The engine is built with empty weights; every value it generates with comes from a transfer into
its own parameters. Written against the version that `rollout.factory` names.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from vllm import LLM, ModelRegistry
from vllm.distributed.parallel_state import get_pp_group
from vllm.exceptions import VLLMValidationError
from vllm.model_executor.models.registry import _RegisteredModel
from vllm.utils import gc_utils

from verl_hpc.config.rollout import RolloutConfig, StructuredConfig
from verl_hpc.errors import ConfigError
from verl_hpc.hf.model import class_name
from verl_hpc.hf.processors import do_without_torchvision
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.families import FAMILIES
from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.rollout import vllm_fp8, vllm_routed
from verl_hpc.rollout.protocol import Feed, Request, Sampling
from verl_hpc.rollout.vllm_groups import replica_as_world, start_groups, stop_groups
from verl_hpc.rollout.vllm_requests import Requests, generators_untouched
from verl_hpc.rollout.vllm_routed import FromOutputs, FromRouters, RoutedExperts
from verl_hpc.rollout.vllm_settings import (
    checked,
    custom_all_reduce,
    experts,
    in_one_line,
    memory,
    slots,
    use_the_cache,
)
from verl_hpc.runtime.garbage import spare_what_exists
from verl_hpc.runtime.world import World

_STEPS_BETWEEN_QUESTIONS = 32
"""Steps of the engine, a token of every sequence each, between two questions whether the call is
interrupted: often enough for a signal's lead."""


def join_groups(world: World, replicas: tuple[tuple[int, ...], ...], config: RolloutConfig) -> None:
    """What a rank of no replica does while the others build a `VllmEngine`.

    vLLM's groups are created by all ranks of the world.

    Raises:
        ConfigError: vLLM does not know an option.
    """
    options = checked(config.engine_options, world.device)
    start_groups(world, replicas, custom_all_reduce(options), config.pipeline_parallel)
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
        keeps_experts: give the experts of every token with the responses.

    Raises:
        ConfigError: vLLM does not know an option, refuses a value, or has too little memory.
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
        keeps_experts: bool = False,
    ) -> None:
        self.replicas = replicas
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.shard_map = rollout_shard_map(config, arch, replicas, dtype)
        self._can_sleep = world.device != "cpu"
        self._asleep = False
        self._compiler: str | None = None
        self._on_cpu = world.device == "cpu"
        self._reads_images = arch.family in WITH_IMAGES
        if self._on_cpu:
            _for_cpus().prepare()
        import_worker(world.device)
        import_model(arch.family)
        is_eager = config.enforce_eager or self._on_cpu
        loader = None if arch.is_mapped else _by_name().ByName
        spare_what_exists()
        options = checked(config.engine_options, world.device)
        num_stages = config.pipeline_parallel
        start_groups(world, replicas, custom_all_reduce(options), num_stages)
        arguments = {
            "model": model,
            "tokenizer": tokenizer,
            "dtype": dtype,
            "seed": seed,
            "load_format": "dummy",
            "tensor_parallel_size": len(replicas[0]) // num_stages,
            "pipeline_parallel_size": num_stages,
            "distributed_executor_backend": "external_launcher",
            "max_model_len": config.max_prompt_tokens + config.max_response_tokens,
            "max_num_seqs": slots(config),
            "enforce_eager": is_eager,
            "enable_sleep_mode": self._can_sleep,
            "logprobs_mode": "raw_logprobs" if config.filters else "processed_logprobs",
            "disable_log_stats": True,
            **memory(config, world.device),
            **(experts(config, world.device) if arch.is_moe else {}),
            **(_for_cpus().options() if self._on_cpu else {}),
            **(_invariant().options() if config.batch_invariant else {}),
            **(loader.options(arch, is_eager, self._on_cpu) if loader is not None else {}),
            **vllm_fp8.options(config, arch, world.device),
            **options,
            **(vllm_routed.options(world.device) if keeps_experts else {}),
        }
        if keeps_experts and not self._on_cpu:
            FromOutputs.prepare()
        try:
            with generators_untouched(), replica_as_world():
                self._llm = LLM(**arguments)
        except _refusals(loader is not None) as error:
            stop_groups()
            why = in_one_line(error)
            if loader is not None:
                why = f"{type(error).__name__}: {why}; or choose rollout.engine: hf"
            raise ConfigError(f"rollout: vLLM cannot start with these settings: {why}") from error
        client = self._llm.llm_engine.engine_core
        # vLLM's finalizer destroys torch.distributed's groups, which are the job's.
        client._finalizer.detach()
        self._core = client.engine_core
        settings = self._llm.llm_engine.vllm_config
        self.at_a_time = use_the_cache(self._core, settings, config)
        worker = self._core.model_executor.driver_worker.worker
        layers = settings.compilation_config.static_forward_context.values()
        backends = {x.attn_backend.get_name() for x in layers if hasattr(x, "attn_backend")}
        self.attention = ", ".join(sorted(backends))
        # Not the attribute: CUDA graphs may have wrapped it.
        self._model: torch.nn.Module = worker.model_runner.get_model()
        self._by_name = loader(self._model, self.dtype) if loader is not None else None
        latent = _latent().LatentLayers if arch.latent is not None else None
        self._latent = latent(self._model, self.dtype) if latent is not None else None
        here = {region.view.name for region in self.shard_map.held_by(world.rank)}
        biases = {r.view.name for r in self.shard_map.regions if r.view.name.endswith("_bias")}
        named = self._model.named_parameters()
        self._zeros = {id(p): p.detach() for n, p in named if n in biases - here}
        """Biases of experts that the first rank of an engine adds; on others they are zero."""
        vllm_fp8.check_kernels(self._model)
        self._fewest_rows = 1
        if config.batch_invariant:
            self._fewest_rows = 2  # a single row's product has other bits
            longest = config.max_prompt_tokens + config.max_response_tokens
            _invariant().check(self._model, arch, config.tensor_parallel, longest)
        self._routed: RoutedExperts | None = None
        if keeps_experts:
            runner = worker.model_runner
            self._routed = FromRouters(runner, self._model, arch) if self._on_cpu else FromOutputs()
        if world.device == "cpu":
            _receive_hidden_states(worker.model_runner)

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        others = {*(self._latent.derived if self._latent is not None else ()), *self._zeros}
        named = self._model.named_parameters()
        return {name: p.detach() for name, p in named if id(p) not in others}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        assert self._by_name is not None, "its weights are filled in place"
        self._by_name.load(tensors)

    def generate(self, feed: Feed, sampling: Sampling) -> None:
        assert not self._asleep, "the engine sleeps; its weights must be filled first"
        requests = Requests(self._llm.llm_engine, sampling, self._routed)
        with generators_untouched():
            for step in itertools.count(1):
                for index, request in feed.next(requests.num_running):
                    requests.begin(index, request)
                if not requests.num_running:
                    break
                for index, response in requests.step():
                    feed.ended(index, response)
                if feed.stops(asks=step % _STEPS_BETWEEN_QUESTIONS == 0):
                    break
            for index, response in requests.abort():
                feed.ended(index, response)
            while self._core.batch_queue:  # steps started ahead; their tokens are not wanted
                self._llm.llm_engine.step()
        if self._routed is not None:
            self._routed.forget()

    def check(self, setting: str, constraint: StructuredConfig) -> None:
        """Check that vLLM can constrain responses as a setting says.

        Raises:
            ConfigError: it cannot.
        """
        requests = Requests(self._llm.llm_engine, Sampling(1, structured=constraint.for_vllm))
        named = f"{setting}.{next(name for name, value in constraint if value is not None)}"
        try:
            requests.begin(0, Request([0], seed=0))
            (request,) = self._core.scheduler.requests.values()
            compiled = request.structured_output_request
            if isinstance(compiled.grammar, Exception):
                raise compiled.grammar
        except (ValueError, RuntimeError, VLLMValidationError) as error:
            raise ConfigError(f"{named}: vLLM refuses it: {in_one_line(error)}") from error
        finally:
            requests.abort()
        # An engine compiles all constraints as it did the first, and leaves out what that cannot.
        self._compiler = self._compiler or compiled.params._backend
        if compiled.params._backend != self._compiler:
            raise ConfigError(
                f"{named}: vLLM would compile it by {compiled.params._backend}, and it compiles "
                f"another constraint of the run by {self._compiler}; an engine has one compiler: "
                "write it without what the other one lacks, or give it a run of its own"
            )

    def begin_update(self) -> None:
        if self._asleep:
            self._wake_up("weights")

    def finish_update(self) -> None:
        if self._asleep:
            self._wake_up("kv_cache")
            self._asleep = False
        if self._by_name is not None:
            self._by_name.finish()
        if self._latent is not None:
            self._latent.derive()
        for bias in self._zeros.values():
            bias.zero_()
        if self._on_cpu:
            _for_cpus().pack_linears(self._model, self._fewest_rows)
        forgotten = self._llm.reset_prefix_cache()
        assert forgotten, "requests were running during a weight update"
        if self._reads_images:  # its features of those that it has seen are old
            self._llm.llm_engine.reset_encoder_cache()

    def _wake_up(self, tag: str) -> None:
        # vLLM maps memory outside torch's allocator, whose freed blocks would not be available.
        torch.cuda.empty_cache()
        self._llm.wake_up(tags=[tag])

    def sleep(self) -> None:
        # Level 2 keeps no copy of the weights: the next transfer brings new ones anyway.
        if self._can_sleep and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = True

    def close(self) -> None:
        self._core.model_executor.shutdown()
        self._core.scheduler.shutdown()
        del self._llm, self._core, self._model
        gc.collect()
        stop_groups()


def _for_cpus() -> ModuleType:
    """Import what replaces vLLM's kernels on CPUs; it needs parts of vLLM that GPUs do without."""
    from verl_hpc.rollout import vllm_cpu

    return vllm_cpu


def _invariant() -> ModuleType:
    """Import kernels that do not depend on the batch; only CPUs have them."""
    from verl_hpc.rollout import vllm_invariant

    return vllm_invariant


def _by_name() -> ModuleType:
    """Import what loads weights by their names; it needs parts of vLLM that other models do
    without."""
    from verl_hpc.rollout import vllm_by_name

    return vllm_by_name


def _refusals(by_name: bool) -> tuple[type[Exception], ...]:
    """Errors by which vLLM refuses a model or settings. Classes of models that no layer table was
    written for fail at what they miss in config.json, each in its own way."""
    return (Exception,) if by_name else (ValueError, NotImplementedError)


def _latent() -> ModuleType:
    """Import what knows multi-latent attention, which few models have."""
    from verl_hpc.rollout import vllm_latent

    return vllm_latent


def import_worker(device: str) -> None:
    """Import vLLM's worker; from then on vLLM neither freezes nor unfreezes objects.

    vLLM freezes all of them once an engine has started, and unfreezes all, those that the run has
    frozen included (`runtime.garbage`), after every capture of CUDA graphs and when an engine ends.
    """
    if device == "cpu":
        # First: its patches do not reach modules that have imported the originals by name.
        import vllm.v1.worker.cpu_worker  # noqa: F401

        _for_cpus().replace_kernels()
    from vllm.v1.worker import gpu_worker

    left_out = dict.fromkeys(("freeze", "unfreeze"), lambda: None)
    gc_utils.gc = gpu_worker.gc = SimpleNamespace(**(vars(gc) | left_out))


def import_model(family: str) -> None:
    """Import vLLM's class of a model family.

    Else each rank asks about the class in a process that imports torch and vLLM anew, wherever the
    node's cache has no answer yet.
    """
    if family not in FAMILIES:  # vLLM's module of a text model may be that of one with images
        do_without_torchvision()
    name = class_name(family)
    if name in ModelRegistry.models:
        loaded = ModelRegistry.models[name].load_model_cls()
        ModelRegistry.models[name] = _RegisteredModel.from_model_cls(loaded)


def _receive_hidden_states(runner: Any) -> None:
    """Allocate what a later pipeline stage receives into: vLLM does so in a run that measures
    memory, which it leaves out on CPUs where nothing is compiled."""
    if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
        )
