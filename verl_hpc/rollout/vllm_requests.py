"""Send requests to vLLM's engine, and read responses from its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer, SlowIncrementalDetokenizer
from vllm.v1.engine.llm_engine import LLMEngine

from verl_hpc.errors import ModelError, TrainingError
from verl_hpc.hf.pictures import decode
from verl_hpc.rollout.partial import continued, this_turn
from verl_hpc.rollout.protocol import NOT_BEGUN, Request, Response, Sampling
from verl_hpc.rollout.vllm_routed import RoutedExperts


class Requests:
    """The requests of one generate call, turn by turn.

    Args:
        engine: vLLM's engine.
        sampling: how to sample tokens.
        routed: records the routers' experts; None records nothing.
    """

    def __init__(
        self, engine: LLMEngine, sampling: Sampling, routed: RoutedExperts | None = None
    ) -> None:
        self._engine, self._sampling, self._routed = engine, sampling, routed
        self._parameters = _parameters(sampling)
        self._num_begun = 0
        self._running: dict[str, tuple[int, Request, str]] = {}
        """Index, request, and the engine's internal name, by the name of a request."""
        self._outputs: dict[str, RequestOutput] = {}
        """Last output of the running requests."""

    @property
    def num_running(self) -> int:
        return self._engine.get_num_unfinished_requests()

    def begin(self, index: int, request: Request) -> None:
        """Request the continuation of a response."""
        name = f"{index}/{self._num_begun}"
        self._num_begun += 1
        # The engine takes a copy of them.
        self._parameters.seed = request.seed
        most = request.max_tokens or self._sampling.max_tokens
        self._parameters.max_tokens = most - len(request.prefix.tokens)
        # vLLM need not return the experts that the prefix already has (on GPUs).
        self._parameters.routed_experts_prompt_start = _num_routed(request.prefix)
        internal = _add_request(self._engine, name, request, self._parameters)
        self._running[name] = index, request, internal
        if self._routed is not None:
            self._routed.follow(internal, self._engine.output_processor.request_states[internal])

    def step(self) -> list[tuple[int, Response]]:
        """Run one engine step; return the responses whose turn ended in it, with their index."""
        outputs = self._engine.step()
        self._outputs |= {output.request_id: output for output in outputs}
        return [self._ended(output.request_id) for output in outputs if output.finished]

    def abort(self) -> list[tuple[int, Response]]:
        """Abort unfinished requests; return their responses so far, with their index."""
        self._engine.abort_request([*self._running])
        return [self._ended(name) for name in [*self._running]]

    def _ended(self, name: str) -> tuple[int, Response]:
        index, request, internal = self._running.pop(name)
        before, new = request.prefix, response_of(self._outputs.pop(name, None))
        if self._routed is not None and new.tokens:
            read = len(request.prompt) + len(before.tokens) + len(new.tokens) - 1
            rows = self._routed.rows(internal, _num_routed(before), read)
            new = replace(new, experts=rows)
        return index, continued(before, new)


def _num_routed(response: Response) -> int:
    """Count the tokens with recorded experts."""
    return 0 if response.experts is None else len(response.experts)


def _add_request(engine: LLMEngine, name: str, request: Request, parameters: SamplingParams) -> str:
    """Request the continuation of a response; return the engine's internal name of the request."""
    tokens = [*request.prompt, *request.prefix.tokens]
    if request.images is None:
        internal_name = engine.add_request(name, {"prompt_token_ids": tokens}, parameters)
    else:
        images = decode(request.images.pictures, "a prompt of this step")
        given: Any = {
            "prompt_token_ids": [*request.images.unexpanded, *request.prefix.tokens],
            "multi_modal_data": {"image": images},
        }
        internal_name = engine.add_request(name, given, parameters)
        _check_expanded(engine.output_processor.request_states[internal_name], tokens)
    said = this_turn(request.prefix)
    if said and parameters.stop:
        state = engine.output_processor.request_states[internal_name]
        tokenizer = engine.output_processor.tokenizer
        read = tokens[: len(tokens) - len(said)]
        state.detokenizer = _detokenizer_after(tokenizer, name, read, said, parameters)
    return internal_name


def _check_expanded(state: Any, tokens: Sequence[int]) -> None:
    """Raises: ModelError: vLLM has made other tokens of images than training reads."""
    if list(state.prompt_token_ids) != tokens:
        raise ModelError(
            f"rollout.engine = vllm: it makes a prompt of {len(state.prompt_token_ids)} tokens of "
            f"one with images, where transformers' processor makes {len(tokens)}; leave "
            "mm_processor_kwargs out of rollout.engine_options, or choose rollout.engine: hf"
        )


def _detokenizer_after(
    tokenizer: Any,
    name: str,
    prompt: Sequence[int],
    said: Sequence[int],
    parameters: SamplingParams,
) -> IncrementalDetokenizer:
    """Make a detokenizer that has read `said`, so that a stop string, or the bytes of a character,
    may begin there and end in new tokens. By default vLLM searches only the text of new tokens."""
    request: Any = SimpleNamespace(
        request_id=name,
        prompt_token_ids=list(prompt),
        prompt_embeds=None,
        sampling_params=parameters,
    )
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    stop = detokenizer.update(list(said), stop_terminated=False)
    assert stop is None, f"an unfinished response contains the stop string {stop!r}"
    # Its tokens are those of the response to come.
    if isinstance(detokenizer, SlowIncrementalDetokenizer):
        detokenizer.prompt_len += len(said)
    else:
        detokenizer.token_ids.clear()
    return detokenizer


def _parameters(sampling: Sampling) -> SamplingParams:
    """Return the parameters common to a call's requests; each gets its own seed and token limit.

    A request without its own seed draws from the process's generator, which may differ between the
    ranks of a replica: they would silently sample different tokens.
    """
    constraint = sampling.structured
    return SamplingParams(
        structured_outputs=StructuredOutputsParams(**constraint) if constraint else None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop) or None,
        stop_token_ids=list(sampling.stop_token_ids),
        detokenize=bool(sampling.stop),
        # Stop strings may be, or contain, special tokens.
        skip_special_tokens=False,
        logprobs=0,
        # The engine's copy of each request's is a shallow one.
        skip_clone=True,
    )


def response_of(request: RequestOutput | None) -> Response:
    """Return a request's response so far."""
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
    if output.finish_reason not in ("stop", "length"):
        raise TrainingError(
            f"rollout: vLLM ended a response of {len(tokens)} tokens by itself "
            f"({output.finish_reason}); it is neither complete nor as long as it may be"
        )
    return Response(tokens, log_probs, output.finish_reason)


class generators_untouched:  # noqa: N801 (a context manager)
    """Restores torch's generators: generation advances them even if requests have seeds."""

    def __enter__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
