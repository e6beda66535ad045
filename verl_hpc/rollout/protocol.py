"""What a generation engine is to the rest: weights to fill, and a generate call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.shard_map import ShardMap

NOT_FINITE = (
    "rollout: the model's logits are infinite or NaN; its weights are, or are too large: look at "
    "the gradient norm of the steps before, and at the weights that the run started from"
)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    """Strings that end a response; the text in which they are looked for has special tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response, besides those that the model and its tokenizer name."""

    @classmethod
    def from_config(cls, config: RolloutConfig, ends: Sequence[int] = ()) -> Sampling:
        """How training samples.

        Args:
            ends: tokens that end a response besides those of `config`.
        """
        return cls(
            config.max_response_tokens,
            config.temperature,
            config.top_p,
            config.top_k,
            config.min_p,
            config.repetition_penalty,
            tuple(config.stop),
            tuple(dict.fromkeys((*config.stop_token_ids, *ends))),
        )

    @property
    def greedy(self) -> Sampling:
        """The likeliest tokens, with the same limits."""
        return Sampling(
            self.max_tokens,
            temperature=0.0,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
        )


@dataclass(frozen=True)
class Response:
    """One generated continuation, its end-of-sequence token included.

    One that is unfinished can be continued (`RolloutEngine.generate`); after that its tokens may
    come from more than one version of the weights.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Of each token under the model's whole distribution, by the weights it was sampled with: at
    the sampling temperature if the engine was built without filters (`RolloutConfig.filters`), at
    temperature 1 if with, since vLLM knows log-probs before temperature and filters, or after both.
    0 of a token that the model did not sample.
    """
    finish_reason: Literal["stop", "length", "unfinished"]
    mask: tuple[int, ...] | None = None
    """1 where the model sampled a token, 0 where an environment wrote it; None if the model sampled
    all."""
    experts: Any = field(default=None, compare=False)
    """Of an engine that keeps them: where each token of prompt and response was routed, (tokens,
    layers, k) uint8 or uint16 of numpy; not of the last one, which nothing read. They are of the
    weights that read a token first."""
    allowed: Any = field(default=None, compare=False)
    """Where a constraint restricts what is sampled: the tokens that each one was chosen from,
    (tokens, bytes) uint8 of numpy as `Wanted.allowed`; log_probs are of the distribution over these
    alone."""

    @property
    def sampled(self) -> tuple[int, ...]:
        """The mask, also where there is none."""
        return (1,) * len(self.tokens) if self.mask is None else self.mask


def never() -> bool:
    """Never interrupts."""
    return False


class Turns(Protocol):
    """What happens between two turns of the model, for an engine that is generating.

    On the ranks of a replica all methods give the same.
    """

    def ended(self, index: int, response: Response) -> None:
        """A turn of the response to prompt `index` has ended; `response` has all turns so far."""

    def next(self, wait: bool) -> Sequence[tuple[int, Response, int]]:
        """Responses to continue now: the prompt's index, what there is with an observation behind
        it (unfinished, and shorter than the longest response), and a seed for the next turn.

        Args:
            wait: for one, a second at most; `under_way` says whether there will be any.
        """

    @property
    def under_way(self) -> Collection[int]:
        """Prompts whose response waits for an observation."""


class RolloutEngine(Protocol):
    """A replica of the model that generates; its ranks call every method together.

    Its parameters are ordinary tensors that a transfer fills in place, between `begin_update` and
    `finish_update`.
    """

    shard_map: ShardMap
    """Of all replicas."""
    dtype: torch.dtype
    replicas: tuple[tuple[int, ...], ...]
    """Ranks of every replica, in tensor-parallel order within its pipeline stages."""
    attention: str
    """Name of the kernel that computes attention."""
    at_a_time: int
    """Responses that a replica generates at a time."""

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """This rank's parameters by the local names of the shard map."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        interrupted: Callable[[], bool] = never,
        prefixes: Sequence[Response | None] | None = None,
        keep_unfinished: bool = False,
        until: Callable[[Collection[int]], bool] | None = None,
        turns: Turns | None = None,
        on_finished: Callable[[int, Response], None] | None = None,
        more: Callable[[], Collection[int]] | None = None,
    ) -> list[Response | None]:
        """One response per prompt; the same arguments on all ranks of a replica.

        The same weights, prompts, prefixes and seeds give the same responses.

        Args:
            prompts: token ids.
            sampling: how tokens are chosen; `max_tokens` counts those of a prefix, too.
            seeds: one per prompt. A response that is continued needs another seed than before:
                with the same one its new tokens are drawn with the random numbers of its first.
            interrupted: asked every 32 steps of the engine or between batches, equally often on
                all ranks of a replica, and must return the same on all; True ends the call.
            prefixes: unfinished responses to continue, None for those to begin. Their tokens and
                log-probs stay as they are and begin the responses returned.
            keep_unfinished: after a call that was ended, return the tokens so far of responses
                that are not finished, possibly none, with finish_reason "unfinished"; otherwise
                None stands for each of them.
            until: asked after every step of the engine, or between batches, with the indices of
                the prompts whose responses are finished; True ends the call. These indices are the
                same on all ranks of a replica, which therefore agree without communication.
            turns: asked what follows each turn that ends; the other sequences generate meanwhile.
            on_finished: told each response as soon as it is finished, with its index; with `turns`,
                each turn.
            more: gives indices of prompts to begin, asked whenever fewer than `at_a_time` are
                unfinished, until it gives none; the same on all ranks of a replica. None begins all
                prompts. One that it never gives has no response.
        """

    def begin_update(self) -> None:
        """Make the parameters' memory available."""

    def finish_update(self) -> None:
        """New weights are in place: forget everything computed with the old ones."""

    def sleep(self) -> None:
        """Free device memory until the next `begin_update`, where the engine can."""

    def close(self) -> None:
        """Free the engine; it cannot be used again."""


def replica_of(replicas: Sequence[Sequence[int]], rank: int) -> int | None:
    """Index of the replica that `rank` belongs to; None if it belongs to none."""
    return next((i for i, group in enumerate(replicas) if rank in group), None)
