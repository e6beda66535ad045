"""A rollout engine inside this process, on plain torch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Literal

import torch

from verl_hpc.layout.architecture import Architecture
from verl_hpc.rollout.partial import continued
from verl_hpc.rollout.protocol import Feed, Request, Response, Sampling
from verl_hpc.testing.local import TinyModel, tiny_architecture


class LocalRollout:
    """`RolloutEngine` of one rank: samples a `TinyModel` token by token.

    It does not support filters and stop strings.

    Args:
        arch: sizes of the model.
        end: the token that ends a response.
        seed: seed of the weights, until others are filled in.
        max_num_seqs: responses that grow at a time, by one token per step.
    """

    dtype = torch.float32
    replicas: tuple[tuple[int, ...], ...] = ((0,),)
    attention = "none"

    def __init__(
        self, arch: Architecture | None = None, end: int = 0, seed: int = 0, max_num_seqs: int = 1
    ) -> None:
        self._model, self._end = TinyModel(arch or tiny_architecture(), seed=seed), end
        self.at_a_time = max_num_seqs
        self._sleeps = False
        self.shard_map = self._model.shard_map
        self.weights: Mapping[str, torch.Tensor] = self._model.weights

    def generate(self, feed: Feed, sampling: Sampling) -> None:
        """See `RolloutEngine.generate`; `interrupted` is asked whenever responses begin."""
        assert not self._sleeps, "it has no weights"
        waiting = deque[tuple[int, Request]]()
        running: dict[int, tuple[Request, Response, torch.Generator]] = {}
        while True:
            waiting.extend(feed.next(len(waiting) + len(running)))
            room = min(self.at_a_time - len(running), len(waiting))
            begin = [waiting.popleft() for _ in range(room)]
            if not (begin or running) or feed.stops(asks=bool(begin)):
                break
            for i, request in begin:
                generator = torch.Generator().manual_seed(request.seed)
                running[i] = request, request.prefix, generator
            # Each running response grows by one token per step.
            for i, (request, begun, generator) in [*running.items()]:
                response = self._longer(request, begun, sampling, generator)
                running[i] = request, response, generator
                if response.finish_reason != "unfinished":
                    del running[i]
                    feed.ended(i, response)
        for i, (_, response, _) in running.items():
            feed.ended(i, response)

    def _longer(
        self, request: Request, begun: Response, sampling: Sampling, generator: torch.Generator
    ) -> Response:
        """Return a response grown by one token."""
        with torch.no_grad():
            logits = self._model(torch.tensor([*request.prompt, *begun.tokens]))[-1]
        row = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
        drawn = torch.multinomial(row.exp(), 1, generator=generator)
        token = int(drawn if sampling.temperature else logits.argmax())
        reason: Literal["stop", "length", "unfinished"] = "unfinished"
        if len(begun.tokens) + 1 == (request.max_tokens or sampling.max_tokens):
            reason = "length"
        if token == self._end:
            reason = "stop"
        return continued(begun, Response((token,), (float(row[token]),), reason))

    def begin_update(self) -> None:
        """Wake up, so that weights can be filled in."""
        self._sleeps = False

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        assert not tensors, "weights of this engine are filled in place"

    def finish_update(self) -> None:
        """Do nothing: there are no caches to clear."""

    def sleep(self) -> None:
        """Forget the weights, like an engine on a GPU."""
        self._sleeps = True
        for weight in self.weights.values():
            weight.fill_(math.nan)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
