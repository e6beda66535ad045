"""Requests to vLLM's engine, and responses from its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.v1.engine.detokenizer import IncrementalDetokenizer, SlowIncrementalDetokenizer
from vllm.v1.engine.llm_engine import LLMEngine

from verl_hpc.rollout.partial import NOT_BEGUN
from verl_hpc.rollout.protocol import Response, Sampling


def add_request(
    engine: LLMEngine,
    name: str,
    prompt: Sequence[int],
    prefix: Response,
    sampling: Sampling,
    seed: int,
) -> None:
    """Request what follows `prompt` and the tokens of `prefix`."""
    parameters = _parameters(sampling, len(prefix.tokens), seed)
    tokens = {"prompt_token_ids": [*prompt, *prefix.tokens]}
    internal_name = engine.add_request(name, tokens, parameters)
    if prefix.tokens and sampling.stop:
        state = engine.output_processor.request_states[internal_name]
        tokenizer = engine.output_processor.tokenizer
        state.detokenizer = _detokenizer_after(tokenizer, name, prompt, prefix, parameters)


def _detokenizer_after(
    tokenizer: Any,
    name: str,
    prompt: Sequence[int],
    prefix: Response,
    parameters: SamplingParams,
) -> IncrementalDetokenizer:
    """Knows the text of `prefix`, so that a stop string may begin in it and end in new tokens, and
    bytes of one character may lie on both sides. By itself vLLM searches the text of new tokens."""
    request: Any = SimpleNamespace(
        request_id=name,
        prompt_token_ids=list(prompt),
        prompt_embeds=None,
        sampling_params=parameters,
    )
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    found = detokenizer.update(list(prefix.tokens), stop_terminated=False)
    assert found is None, f"an unfinished response contains the stop string {found!r}"
    # Its tokens are those of the response to come.
    if isinstance(detokenizer, SlowIncrementalDetokenizer):
        detokenizer.prompt_len += len(prefix.tokens)
    else:
        detokenizer.token_ids.clear()
    return detokenizer


def _parameters(sampling: Sampling, num_done: int, seed: int) -> SamplingParams:
    # Without a seed of its own a request draws from the process's generator, which may differ
    # between the ranks of a replica: they would silently sample different tokens.
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=sampling.max_tokens - num_done,
        stop=list(sampling.stop) or None,
        detokenize=bool(sampling.stop),
        seed=seed,
        logprobs=0,
    )


def response_of(request: RequestOutput | None) -> Response:
    """The tokens that a request has so far."""
    if request is None:
        return NOT_BEGUN
    (output,) = request.outputs
    log_probs = tuple(
        float(choices[token].logprob)
        for choices, token in zip(output.logprobs or (), output.token_ids, strict=True)
    )
    tokens = tuple(output.token_ids)
    if not request.finished:
        return Response(tokens, log_probs, "unfinished")
    return Response(tokens, log_probs, "length" if output.finish_reason == "length" else "stop")


class generators_untouched:  # noqa: N801 (a context manager)
    """Restores torch's generators: generation advances them even with seeds of its own."""

    def __enter__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
