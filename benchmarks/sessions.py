"""What the benchmarks of agents' sessions share: an engine, its programs, and a record of what vLLM
itself was given and has sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.agent_clients import TaskPrograms
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.generation.programs import ProgramHost, Programs
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.rollout.factory import build_rollout
from verl_hpc.rollout.protocol import Feed, Request, Response, Sampling
from verl_hpc.runtime.session import Session as Here
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import SafetensorsReader


@dataclass(frozen=True)
class Sampled:
    """One request of vLLM's that has ended."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    num_cached: int
    """Tokens of the prompt that vLLM did not compute."""


@dataclass
class Recorder:
    """Listens to vLLM's own engine, below everything of this package.

    Args:
        engine: a `VllmEngine`.
    """

    engine: Any
    ended: list[Sampled] = field(default_factory=list)
    experts: list[Any] = field(default_factory=list)
    """The experts of each request, (tokens, layers, k), if the engine records them."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record the requests that end in this block."""
        vllm, given = self.engine._llm.llm_engine, dict[str, tuple[int, ...]]()
        add, step = vllm.add_request, vllm.step

        def add_request(name: str, prompt: Any, parameters: Any) -> Any:
            given[name] = tuple(prompt["prompt_token_ids"])
            return add(name, prompt, parameters)

        def take_step() -> Any:
            outputs = step()
            for output in outputs:
                if output.finished:
                    self.ended.append(_sampled(given.pop(output.request_id), output))
            return outputs

        def experts_of(*names: Any) -> Any:
            self.experts.append(routed_rows(*names))
            return self.experts[-1]

        with ExitStack() as patches:
            patches.enter_context(patch.object(vllm, "add_request", add_request))
            patches.enter_context(patch.object(vllm, "step", take_step))
            if (routed := self.engine._routed) is not None:
                routed_rows = routed.rows
                patches.enter_context(patch.object(routed, "rows", experts_of))
            yield


def _sampled(prompt: tuple[int, ...], output: Any) -> Sampled:
    (found,) = output.outputs
    pairs = zip(found.token_ids, found.logprobs, strict=True)
    log_probs = tuple(float(by_token[token].logprob) for token, by_token in pairs)
    return Sampled(prompt, tuple(found.token_ids), log_probs, output.num_cached_tokens or 0)


def engine_of(here: Here, model: Path, config: RolloutConfig, dtype: str, **options: Any) -> Any:
    """A vLLM engine on all ranks with the weights of a Hugging Face directory."""
    arch, replicas = read_architecture(model), (tuple(range(here.world.size)),)
    config = config.model_copy(update={"tensor_parallel": here.world.size})
    engine = build_rollout(
        here.world, arch, str(model), str(model), replicas, config, dtype, **options
    )
    assert engine is not None
    plan = plan_transfer(safetensors_shard_map(model), engine.shard_map, here.world.node_of)
    engine.begin_update()
    Transfer(plan, here.world.rank, SafetensorsReader()).run({}, engine.weights, engine.dtype)
    engine.finish_update()
    return engine


@contextmanager
def host_of(
    config: RolloutConfig, encoder: Encoder, programs: TaskPrograms
) -> Iterator[ProgramHost]:
    """An endpoint whose programs are tasks of one process."""
    with patch("verl_hpc.generation.programs.start_programs", lambda _: programs):
        host = ProgramHost(config, encoder)
    try:
        yield host
    finally:
        host.endpoint.stop()


def run_programs(
    here: Here,
    engine: Any,
    host: ProgramHost | None,
    config: RolloutConfig,
    prompts: Sequence[str],
    sampling: Sampling,
    seed: Callable[[int, int], int],
) -> list[Response]:
    """Run a program for each prompt; return their responses, each with its episode.

    Args:
        host: endpoint of the engine; None on other ranks than the first.
    """
    problems = [Problem(index, prompt) for index, prompt in enumerate(prompts)]
    feed = Feed([Request((0,), 0) for _ in prompts])
    assert config.program is not None
    given = config.program, host, problems, seed, here.control
    with closing(Programs(feed, *given)) as programs:
        engine.generate(programs, sampling)
    assert not programs.failures, programs.failures[:3]
    return feed.responses
