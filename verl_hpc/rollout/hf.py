"""A rollout engine on transformers' generate: the reference, and a fallback without vLLM.

Every rank has the whole model, so a replica is one rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, ModelError, NotFiniteError
from verl_hpc.hf.images import ImageInputs, Images, image_reader
from verl_hpc.hf.model import build_language_model
from verl_hpc.hf.stored import stored_views
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.rollout import whole_shard_map
from verl_hpc.rollout.partial import continued
from verl_hpc.rollout.protocol import NOT_FINITE, Feed, Request, Response, Sampling
from verl_hpc.runtime.world import World

_NONE: Images = ((), 0)
_BATCH = 256
"""Responses at a time if rollout.max_num_seqs is null."""


def _end_tokens(model: str, tokenizer: str) -> list[int]:
    """Return the tokens that end a response, as in vLLM: the tokenizer's, and those of
    generation_config.json, or else of config.json."""
    try:
        named = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        named = AutoConfig.from_pretrained(model).eos_token_id
    ends = named if isinstance(named, list) else [named]
    own = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True).eos_token_id
    return sorted({end for end in [own, *ends] if end is not None})


def _build(model: str, arch: Architecture, dtype: torch.dtype) -> PreTrainedModel:
    if arch.published is not None:
        return build_language_model(arch, dtype)
    settings = AutoConfig.from_pretrained(model)
    settings.head_dim = arch.head_size  # null is legal, and some models fail on it
    try:
        return AutoModelForCausalLM.from_config(settings, dtype=dtype)
    except Exception as error:  # every class of models checks its settings in its own way
        raise ModelError(
            f"model: {model}/config.json: transformers cannot build it: "
            f"{type(error).__name__}: {error}"
        ) from error


class _Finite(LogitsProcessor):
    """Refuses logits that are not finite, before temperature and filters: sampling from them fails
    in torch, and on a GPU that error ends the process."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        del input_ids
        if not bool(scores.isfinite().all()):
            raise NotFiniteError(NOT_FINITE)
        return scores


class HfEngine:
    """A transformers model as `RolloutEngine`.

    Random numbers are drawn per batch, so unlike with vLLM a response depends on its neighbours in
    the batch; the same batch and seeds give the same responses.

    Raises:
        ConfigError: tensor parallelism, stop strings, or a model whose tensors transformers
            renames in memory.
        ModelError: transformers cannot build what config.json says.
        NotFiniteError: by `generate`, if a logit is not finite.
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
        del seed
        self.shard_map = whole_shard_map(arch, replicas, dtype)
        if arch.is_moe:
            raise ConfigError(f"rollout.engine = hf does not support the {arch.family} family")
        if config.stop:
            raise ConfigError(
                f"rollout.stop = {config.stop} with rollout.engine = hf, whose responses are ended "
                "by tokens alone; choose rollout.stop_token_ids, or engine: vllm"
            )
        self.replicas = replicas
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.at_a_time = config.max_num_seqs or _BATCH
        self._device = torch.device(world.device)
        self._model = _build(model, arch, self.dtype).to(self._device).eval()
        self._views: Mapping[str, torch.Tensor] = {}
        if arch.published is not None:
            self._views = stored_views(self._model, arch.published.shapes)
        reader = image_reader(arch)
        self._images = ImageInputs(self._model, reader) if reader is not None else None
        self._ends = _end_tokens(model, tokenizer)
        self._filtered = bool(config.filters)
        self.attention: str = self._model.config._attn_implementation

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        return {name: p.detach() for name, p in self._model.named_parameters()}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            self._views[name].copy_(tensor)

    def generate(self, feed: Feed, sampling: Sampling) -> None:
        todo: list[tuple[int, Request]] = []
        while True:
            todo += feed.next(len(todo))
            if not todo or feed.stops(asks=True):
                break
            # A step generates one batch to its end.
            part, todo = todo[: self.at_a_time], todo[self.at_a_time :]
            responses = self._continue([request for _, request in part], sampling)
            for (index, _), response in zip(part, responses, strict=True):
                feed.ended(index, response)

    def _continue(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        texts = [[*request.prompt, *request.prefix.tokens] for request in requests]
        limits = [sampling.max_tokens - len(request.prefix.tokens) for request in requests]
        seeds = [request.seed for request in requests]
        images = [(r.images.pictures, r.images.num_tokens) if r.images else _NONE for r in requests]
        rows = self._generate(texts, max(limits), sampling, seeds, images)
        ends = torch.tensor(self._all_ends(sampling))
        return [
            continued(request.prefix, _cut(tokens[:limit], log_probs[:limit], ends))
            for request, limit, (tokens, log_probs) in zip(requests, limits, rows, strict=True)
        ]

    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: Sampling,
        seeds: Sequence[int],
        images: Sequence[Images] = (),
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Generate new tokens of every row, up to the longest row's length; return them with their
        log-probs."""
        # Prompts are padded on the left, so that all new tokens start at the same column.
        width = max(map(len, prompts))
        ends = self._all_ends(sampling)
        pad = ends[0]
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        sampled = sampling.temperature > 0
        choices = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": max(sampling.top_k, 0),
            "min_p": sampling.min_p,
        }
        # Sampling leaves the process's generators as they were.
        devices = [self._device] if self._device.type == "cuda" else []
        tokens = ids.to(self._device)
        beside: AbstractContextManager[dict[str, torch.Tensor]] = nullcontext({})
        if self._images is not None and any(count for _, count in images):
            beside = self._images.given(tokens, images)
        with torch.no_grad(), torch.random.fork_rng(devices=devices), beside as given:
            torch.manual_seed(hash(tuple(seeds)) & 0x7FFFFFFFFFFFFFFF)
            output = self._model.generate(
                input_ids=tokens,
                attention_mask=mask.to(self._device),
                **given,
                max_new_tokens=max_tokens,
                do_sample=sampled,
                **(choices if sampled else {}),
                repetition_penalty=sampling.repetition_penalty,
                logits_processor=LogitsProcessorList([_Finite()]),
                pad_token_id=pad,
                eos_token_id=ends,
                return_dict_in_generate=True,
                output_scores=not self._filtered,
                output_logits=self._filtered,
            )
        new, log_probs = self._read(output, mask, sampling)
        return list(zip(new.cpu(), log_probs.cpu(), strict=True))

    def _read(
        self, output: Any, mask: torch.Tensor, sampling: Sampling
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new tokens and their log-probs, (B, T) each.

        Args:
            output: result of transformers' generate.
            mask: (B, width), of the left-padded prompts.
            sampling: how the tokens were sampled.
        """
        del sampling  # the scores are at its temperature
        new = output.sequences[:, mask.shape[1] :]
        per_token = output.logits if self._filtered else output.scores
        # Token by token: all of them at once would be the vocabulary's size larger.
        log_probs = torch.stack(
            [
                scores.float().log_softmax(-1).gather(-1, token[:, None])[:, 0]
                for scores, token in zip(per_token, new.T, strict=True)
            ],
            dim=1,
        )
        return new, log_probs

    def _all_ends(self, sampling: Sampling) -> list[int]:
        """Return all tokens that end a response, the model's own first."""
        return list(dict.fromkeys((*self._ends, *sampling.stop_token_ids)))

    def begin_update(self) -> None:
        """Do nothing: the weights are always in memory."""

    def finish_update(self) -> None:
        """Do nothing: there is no cache between calls."""

    def sleep(self) -> None:
        """Do nothing: the engine keeps its memory."""

    def close(self) -> None:
        del self._model


def _cut(tokens: torch.Tensor, log_probs: torch.Tensor, ends: torch.Tensor) -> Response:
    """Cut a row of the batch after its first end token."""
    stops = torch.isin(tokens, ends)
    finished = bool(stops.any())
    length = int(stops.int().argmax()) + 1 if finished else len(tokens)
    return Response(
        tuple(tokens[:length].tolist()),
        tuple(log_probs[:length].tolist()),
        "stop" if finished else "length",
    )
