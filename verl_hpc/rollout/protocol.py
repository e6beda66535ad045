"""Protocol of a rollout engine: weights to fill, and a generate call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.hf.pictures import ImagePrompt
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.record import SessionRecord

NOT_FINITE = (
    "rollout: the model's logits are infinite or NaN; its weights are, or are too large: look at "
    "the gradient norm of the steps before, and at the weights that the run started from"
)


@dataclass(frozen=True)
class Sampling:
    """How to sample tokens."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    """Strings that end a response, searched in text with special tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response, besides those of the model and its tokenizer."""
    structured: Mapping[str, Any] | None = None
    """Fields of vLLM's StructuredOutputsParams, which constrain responses."""

    @classmethod
    def from_config(cls, config: RolloutConfig, ends: Sequence[int] = ()) -> Sampling:
        """Return the sampling of training.

        Args:
            ends: further tokens that end a response.
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
            config.structured.for_vllm if config.structured is not None else None,
        )

    @property
    def greedy(self) -> Sampling:
        """Greedy sampling with the same limits."""
        return Sampling(
            self.max_tokens,
            temperature=0.0,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            structured=self.structured,
        )


@dataclass(frozen=True)
class Response:
    """One generated response, its end-of-sequence token included.

    An unfinished one can be continued (`RolloutEngine.generate`); its tokens may then come from
    several versions of the weights.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Log-prob of each token under the whole distribution of the weights it was sampled with: at
    the sampling temperature without filters (`RolloutConfig.filters`), at temperature 1 with
    filters, since vLLM reports log-probs either before temperature and filters or after both. 0 for
    a token that the model did not sample.
    """
    finish_reason: Literal["stop", "length", "unfinished"]
    mask: tuple[int, ...] | None = None
    """1 for a token that the model sampled, 0 for one that an environment wrote; None if the model
    sampled all."""
    experts: Any = field(default=None, compare=False)
    """Experts of each token of prompt and response except the last, which no pass read: numpy
    (tokens, layers, k) uint8 or uint16, if the engine records them. They come from the weights that
    first read the token."""
    episode: Episode | None = field(default=None, compare=False)
    """What a program did, if one spoke to the model; the response is then its first branch's. With
    an environment it has a record alone."""
    versions: tuple[int, ...] = ()
    """Version of the weights that each token was sampled with, the number of steps that had changed
    them; empty where nothing records it."""

    @property
    def is_finished(self) -> bool:
        return self.finish_reason != "unfinished"

    @property
    def sampled(self) -> tuple[int, ...]:
        """The mask, with `None` expanded to ones."""
        return (1,) * len(self.tokens) if self.mask is None else self.mask


@dataclass(frozen=True)
class Branch:
    """One conversation of a program, from its first prompt to its last turn."""

    prompt: tuple[int, ...]
    """Token ids before the first turn."""
    response: Response
    """The turns, and what was said between them."""
    rewards: Mapping[int, float]
    """Rewards of turns by the index of their last token in the response."""


@dataclass(frozen=True)
class Episode:
    """What one program did with the model."""

    branches: tuple[Branch, ...]
    """Rows to train on, at least one of a program that has ended."""
    score: float | None
    """Score that the program wrote, or the sum of its turns' rewards; None if it wrote none."""
    record: SessionRecord | None = None
    """Its course, for people to see; None of a session that a checkpoint had."""


NOT_BEGUN = Response((), (), "unfinished")


@dataclass(frozen=True)
class Request:
    """A response to generate."""

    prompt: Sequence[int]
    """Token ids."""
    seed: int
    """Seed of its random numbers. A continued response needs a new one: with the old one its new
    tokens would be drawn with the random numbers of its first tokens."""
    prefix: Response = NOT_BEGUN
    """What there is of the response. It is unfinished, and the whole response begins with its
    unchanged tokens and log-probs."""
    images: ImagePrompt | None = None
    """Images of the prompt."""
    max_tokens: int | None = None
    """Most tokens of the response; None takes those of `Sampling`."""


def never() -> bool:
    """Return False: an `interrupted` callback that never ends a call."""
    return False


class Feed:
    """What one call of an engine works on: its requests, and their responses so far.

    All requests are started at once. A feature is a `FeedAround` another feed, which changes what
    is started, when the call ends, or what becomes of a response.

    An engine calls the methods between its steps. What they return follows from the requests and
    responses, so that the ranks of a replica agree without communication.

    Args:
        requests: requests, whose indices name them from then on.
        interrupted: returns whether to end the call early, equally on all ranks of a replica.
    """

    def __init__(
        self, requests: Sequence[Request], interrupted: Callable[[], bool] = never
    ) -> None:
        self.requests, self._interrupted = requests, interrupted
        self.responses: list[Response] = []
        """Each request's response so far; unfinished until the engine or a feature ends it."""
        for request in requests:
            assert request.prefix.finish_reason == "unfinished", request.prefix.finish_reason
            self.responses.append(request.prefix)
        self.finished: set[int] = set()
        """Indices of finished responses."""
        self._next = list(enumerate(requests))

    def next(self, num_running: int) -> Sequence[tuple[int, Request]]:
        """Return the requests to start now, each with its index.

        Args:
            num_running: requests that were started and have not ended. If it is 0 and nothing is
                returned the call is over.
        """
        del num_running
        started, self._next = self._next, []
        return started

    def ended(self, index: int, response: Response) -> None:
        """Take a response that has ended, or has new tokens when the call ends."""
        self.responses[index] = response
        if response.finish_reason != "unfinished":
            self.finished.add(index)

    def stops(self, asks: bool) -> bool:
        """Whether the call ends now, with unfinished responses.

        Args:
            asks: whether to ask `interrupted`, for which ranks may have to communicate. It must be
                equal on all ranks of a replica.
        """
        return asks and self._interrupted()


class FeedAround(Feed):
    """A feed that changes another one; the base class changes nothing."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.requests, self.responses, self.finished = feed.requests, feed.responses, feed.finished

    def next(self, num_running: int) -> Sequence[tuple[int, Request]]:
        return self.feed.next(num_running)

    def ended(self, index: int, response: Response) -> None:
        self.feed.ended(index, response)

    def stops(self, asks: bool) -> bool:
        return self.feed.stops(asks)


class RolloutEngine(Protocol):
    """A generating replica of the model; its ranks call every method together.

    Its parameters are ordinary tensors that a transfer fills in place, between `begin_update` and
    `finish_update`; those of a family without a layer table are given to `load`.
    """

    shard_map: ShardMap
    """Map of the weights of all replicas."""
    dtype: torch.dtype
    replicas: tuple[tuple[int, ...], ...]
    """Ranks of every replica, in tensor-parallel order within its pipeline stages."""
    attention: str
    """Name of the kernel that computes attention."""
    at_a_time: int
    """Number of responses that a replica generates at a time."""

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return this rank's parameters by the local names of the shard map."""

    def generate(self, feed: Feed, sampling: Sampling) -> None:
        """Generate responses to a feed's requests; all ranks of a replica pass equal feeds.

        The same weights, prompts, prefixes and seeds give the same responses.

        Args:
            feed: gives the requests and takes the responses. It is asked what to start before every
                step of the engine, or batch, and between steps whether to stop.
            sampling: how to sample tokens; `max_tokens` includes those of a prefix.
        """

    def begin_update(self) -> None:
        """Make the parameters' memory available for writing."""

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take some of the model's tensors, whole and by their names in its files, in place of
        filling `weights`.

        Raises:
            ModelError: the engine does not know one.
        """

    def finish_update(self) -> None:
        """Drop everything computed with the old weights, once new ones are in place."""

    def sleep(self) -> None:
        """Free device memory until the next `begin_update`, if the engine supports it."""

    def close(self) -> None:
        """Free the engine; it cannot be used again."""


def replica_of(replicas: Sequence[Sequence[int]], rank: int) -> int | None:
    """Return the index of the replica that `rank` belongs to, or None."""
    return next((i for i, group in enumerate(replicas) if rank in group), None)
