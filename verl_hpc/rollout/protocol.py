"""Protocol of a rollout engine: weights to fill, and a generate call."""

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
        )

    @property
    def greedy(self) -> Sampling:
        """Greedy sampling with the same limits."""
        return Sampling(
            self.max_tokens, temperature=0.0, stop=self.stop, stop_token_ids=self.stop_token_ids
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

    @property
    def sampled(self) -> tuple[int, ...]:
        """The mask, with `None` expanded to ones."""
        return (1,) * len(self.tokens) if self.mask is None else self.mask


def never() -> bool:
    """Return False: an `interrupted` callback that never ends a call."""
    return False


class Turns(Protocol):
    """Callbacks of a generating engine between two turns of the model.

    All methods return the same on all ranks of a replica.
    """

    def ended(self, index: int, response: Response) -> None:
        """Handle the end of a turn in the response to prompt `index`; `response` has all turns so
        far."""

    def next(self, wait: bool) -> Sequence[tuple[int, Response, int]]:
        """Return the responses to continue now: the prompt's index, the response with an
        observation appended (unfinished, and below the length limit), and a seed for the next turn.

        Args:
            wait: whether to wait for one, at most a second; `under_way` says whether any can come.
        """

    @property
    def under_way(self) -> Collection[int]:
        """Indices of prompts whose response awaits an observation."""


class RolloutEngine(Protocol):
    """A generating replica of the model; its ranks call every method together.

    Its parameters are ordinary tensors that a transfer fills in place, between `begin_update` and
    `finish_update`.
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
        """Generate one response per prompt; all ranks of a replica pass the same arguments.

        The same weights, prompts, prefixes and seeds give the same responses.

        Args:
            prompts: token ids.
            sampling: how to sample tokens; `max_tokens` includes those of a prefix.
            seeds: one per prompt. A continued response needs a new seed: with the old one its new
                tokens would be drawn with the random numbers of its first tokens.
            interrupted: called every 32 engine steps or between batches, equally often on all ranks
                of a replica, and must return the same on all; True ends the call.
            prefixes: unfinished responses to continue, None for those to start. The returned
                responses begin with their unchanged tokens and log-probs.
            keep_unfinished: if the call is ended, return unfinished responses with their tokens so
                far, possibly zero, and finish_reason "unfinished"; otherwise return None for each.
            until: called after every engine step, or between batches, with the indices of the
                prompts whose responses are finished; True ends the call. These indices are equal on
                all ranks of a replica, which therefore agree without communication.
            turns: gives what follows each finished turn; other sequences generate meanwhile.
            on_finished: called with the index and each response as soon as it is finished; with
                `turns`, each turn.
            more: returns indices of prompts to start; called whenever fewer than `at_a_time` are
                unfinished, until it returns an empty collection; equal on all ranks of a replica.
                None starts all prompts. A prompt it never returns gets no response.
        """

    def begin_update(self) -> None:
        """Make the parameters' memory available for writing."""

    def finish_update(self) -> None:
        """Drop everything computed with the old weights, once new ones are in place."""

    def sleep(self) -> None:
        """Free device memory until the next `begin_update`, if the engine supports it."""

    def close(self) -> None:
        """Free the engine; it cannot be used again."""


def replica_of(replicas: Sequence[Sequence[int]], rank: int) -> int | None:
    """Return the index of the replica that `rank` belongs to, or None."""
    return next((i for i, group in enumerate(replicas) if rank in group), None)
