"""vLLM behind the actor's contract: it generates, by arguments of transformers' `generate`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError

from verl_hpc.api.prompts import plain, rows_of
from verl_hpc.config.arguments import checked, having
from verl_hpc.config.explain import explain
from verl_hpc.config.rollout import HOTTEST_VLLM, Temperature
from verl_hpc.errors import ConfigError
from verl_hpc.rollout.protocol import Response, Sampling
from verl_hpc.section import Integer, NonNegative, Number, Positive, Section, Seed

_WHO = "vLLMActor.generate"


class Generation(Section):
    """What `vLLMActor.generate` takes besides prompts."""

    max_new_tokens: Positive = 20
    """Longest response; 20 as with transformers."""
    do_sample: Annotated[bool, Field(strict=True)] = True
    """False takes the likeliest token each time."""
    temperature: Annotated[Temperature, Field(le=HOTTEST_VLLM)] = 1.0
    top_p: Annotated[Number, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[Integer, Field(ge=-1, le=2**31 - 1)] = -1
    seed: Seed = 0
    pad_token_id: NonNegative = 0

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Generation:
        """Check arguments by name; None asks for nothing.

        Raises:
            ConfigError: one that is not honoured, or a value that is not allowed.
        """
        try:
            return cls.model_validate({k: plain(v) for k, v in arguments.items() if v is not None})
        except ValidationError as error:
            raise ConfigError(f"{_WHO}:\n{explain(error, cls)}") from None

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        temperature = self.temperature if self.do_sample else 0.0
        return Sampling(self.max_new_tokens, temperature, self.top_p, self.top_k)


class vLLMActor:  # noqa: N801 (the tutorials' name)
    """A user's own vLLM `LLM`, such as one with quantization="awq" or LoRA, as an actor.

    Its weights stay what they were when it was built: nothing is transferred into it.

    Args:
        llm_engine: the `LLM`.

    Raises:
        ConfigError: it is no `LLM`.
    """

    generates_only = True

    def __init__(self, llm_engine: Any) -> None:
        from verl_hpc.rollout.user_llm import is_llm

        if not is_llm(llm_engine):
            raise ConfigError(
                f"vLLMActor: llm_engine is {type(llm_engine).__name__}; expected vllm.LLM, or use "
                "VLLMActorModel, which builds one"
            )
        self.llm_engine = llm_engine

    def respond(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Response]:
        """Return a response with log-probs to each prompt of token ids.

        Raises:
            DataError: a prompt that vLLM does not take.
        """
        from verl_hpc.rollout.user_llm import answer

        return answer(self.llm_engine, prompts, sampling, seeds)

    def generate(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> torch.Tensor:
        """Return prompts with their responses, (B, longest) int64, as transformers' generate does:
        prompts end together, and what is shorter than the longest response ends in its padding,
        pad_token_id (0).

        Args:
            input_ids: (B, L) padded on their left, or B lists of ids.
            attention_mask: (B, L), 0 where a token is padding.
            kwargs: transformers' max_new_tokens, do_sample, temperature, top_p, top_k and
                pad_token_id, and seed.

        Raises:
            ConfigError: another argument, with the reason.
            DataError: a prompt that vLLM does not take.
        """
        prompts, asked = rows_of(input_ids, attention_mask), Generation.of(kwargs)
        width = max(map(len, prompts))
        seeds = [asked.seed + i for i in range(len(prompts))]
        responses = self.respond(prompts, asked.sampling, seeds)
        longest = max(len(r.tokens) for r in responses)
        output = torch.full((len(prompts), width + longest), asked.pad_token_id)
        for row, prompt, response in zip(output, prompts, responses, strict=True):
            row[width - len(prompt) : width] = torch.tensor(prompt)
            row[width : width + len(response.tokens)] = torch.tensor(response.tokens)
        return output


class VLLMActorModel(vLLMActor):
    """vLLM with the weights of a model, by name.

    Args:
        model_name: a directory, or ORG/NAME, ORG/NAME@REVISION or modelscope:ORG/NAME of the cache.
        tensor_parallel_size: GPUs that share it; vLLM starts a process for each.
        max_num_seqs: sequences that it decodes at a time.
        dtype: element type of the weights.
        options: more of vLLM's EngineArgs, such as quantization="awq" or enable_lora=True.

    Raises:
        ConfigError: vLLM is not installed, or cannot start with these.
    """

    @checked
    def __init__(
        self,
        model_name: str | Path,
        tensor_parallel_size: int = 1,
        max_num_seqs: int = 256,
        dtype: str = "auto",
        **options: Any,
    ) -> None:
        try:
            from verl_hpc.rollout.user_llm import build_llm
        except ImportError:
            raise ConfigError(
                "VLLMActorModel needs vLLM, which is not installed; install verl_hpc[gpu] (or "
                "[cpu]), or use HfModelAdapter"
            ) from None
        chosen = {
            "tensor_parallel_size": tensor_parallel_size,
            "max_num_seqs": max_num_seqs,
            "dtype": dtype,
            "disable_log_stats": True,
            **options,
        }
        device = "cuda" if torch.cuda.is_available() else "cpu"
        super().__init__(build_llm(str(model_name), device, chosen))


class vLLMAdapter:  # noqa: N801 (the tutorials' name)
    """An actor that is asked from coroutines; its calls run one after the other in a thread.

    Args:
        actor: a `vLLMActor` or `VLLMActorModel`, or anything with `generate`.
    """

    @checked
    def __init__(self, actor: Annotated[Any, having("a vLLMActor", "generate")]) -> None:
        self.actor = actor
        self._lock = threading.Lock()

    async def generate_async(self, input_ids: Any, **kwargs: Any) -> Any:
        """Await what the actor's `generate` gives, while other coroutines go on."""

        def generate() -> Any:
            with self._lock:
                return self.actor.generate(input_ids, **kwargs)

        return await asyncio.to_thread(generate)
