"""Generate with a user's vLLM `LLM`, from token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig
from vllm import LLM
from vllm.exceptions import VLLMValidationError

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, DataError, ModelError
from verl_hpc.layout.vllm import check_cpu_heads
from verl_hpc.rollout.protocol import Request, Response, Sampling
from verl_hpc.rollout.vllm_requests import Requests
from verl_hpc.rollout.vllm_settings import checked, in_one_line, memory
from verl_hpc.sources.local import model_directory


def build_llm(model: str, device: str, options: dict[str, Any]) -> LLM:
    """Build vLLM's `LLM` with the weights of a model directory or of a name on the hub.

    Args:
        device: cpu or cuda; some options are refused on cpu.
        options: vLLM's options, by the names of its EngineArgs.

    Raises:
        ConfigError: vLLM has no such option, or cannot start with it.
        ModelError: the model is not on this machine.
    """
    chosen = checked(options, device)
    model = model_directory("model_name", model)
    if device == "cpu":
        check_cpu_heads(_head_size(model), f"model_name = {model}", "HfModelAdapter")
        # A prompt that is cut in two fails there where requests have seeds, and by default the
        # cache would have nearly all memory of the machine.
        usual = {"enable_chunked_prefill": False, **memory(RolloutConfig(), device)}
        chosen = {**usual, **chosen}
    try:
        return LLM(model=model, **chosen)
    except (ValueError, NotImplementedError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"vLLM cannot start with {model}: {in_one_line(error)} (where its engine has a process "
            "of its own, that process has printed the cause above)"
        ) from error


def _head_size(model: str) -> int:
    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True).get_text_config()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model_name = {model!r}: transformers cannot read its config.json on this machine: "
            f"{in_one_line(error)}"
        ) from error
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def answer(
    llm: Any, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
) -> list[Response]:
    """Generate a response to each prompt.

    Args:
        llm: vLLM's `LLM`; its logprobs_mode decides the log-probs.
        prompts: token ids.
        sampling: how to sample tokens.
        seeds: one per response.

    Raises:
        DataError: vLLM refuses a prompt.
    """
    requests = Requests(llm.llm_engine, sampling)
    for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        try:
            requests.begin(index, Request(prompt, seed))
        except (ValueError, VLLMValidationError) as error:
            requests.abort()
            raise DataError(f"prompt {index}: vLLM refuses it: {in_one_line(error)}") from error
    responses: dict[int, Response] = {}
    while requests.num_running:
        responses |= requests.step()
    return [responses[index] for index in range(len(prompts))]


def is_llm(value: object) -> bool:
    """Whether `value` is vLLM's `LLM`."""
    return isinstance(value, LLM)
