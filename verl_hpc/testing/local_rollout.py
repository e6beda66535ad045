"""A rollout engine inside this process, on plain torch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import torch

from verl_hpc.layout.architecture import Architecture
from verl_hpc.rollout.partial import continued, given_so_far
from verl_hpc.rollout.protocol import Response, Sampling, Turns, never
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
        self._max_num_seqs = self.at_a_time = max_num_seqs
        self._sleeps = False
        self.shard_map = self._model.shard_map
        self.weights: Mapping[str, torch.Tensor] = self._model.weights

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
        """See `RolloutEngine.generate`; `interrupted` is asked before each response begins."""
        assert not self._sleeps, "it has no weights"
        responses = given_so_far(prefixes, len(prompts), sampling)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        waiting, running = deque(range(len(prompts) if more is None else 0)), list[int]()
        done, finished = set[int](), set[int]()
        ended = False
        waiting.extend(more() if more is not None else ())
        while (waiting or running or (turns is not None and turns.under_way)) and not ended:
            # Only turns of an environment are awaited: ask here whether the run is interrupted.
            if not (waiting or running):
                ended = interrupted()
            while waiting and len(running) < self._max_num_seqs and not ended:
                ended = interrupted()
                running += [] if ended else [waiting.popleft()]
            # Each running response grows by one token per round.
            for i in () if ended else running:
                responses[i] = self._longer(prompts[i], responses[i], sampling, generators[i])
            new = [i for i in running if responses[i].finish_reason != "unfinished"]
            done.update(new)
            running = [i for i in running if i not in done]
            if on_finished is not None:
                for i in new:
                    on_finished(i, responses[i])
            # Finished turns go to the environment; conversations that it answers run again.
            if turns is not None:
                for i in new:
                    turns.ended(i, responses[i])
                for i, prefix, seed in turns.next(wait=not (waiting or running)):
                    responses[i], generators[i] = prefix, torch.Generator().manual_seed(seed)
                    running.append(i)
                done.difference_update(running)
            # Prompts of a shared queue are taken as there is room.
            while more is not None and len(waiting) + len(running) < self._max_num_seqs:
                new = [*more()]
                waiting.extend(new)
                more = more if new else None
            finished = done.difference(turns.under_way if turns is not None else ())
            ended = ended or (until is not None and until(finished))
        return [r if keep_unfinished or i in finished else None for i, r in enumerate(responses)]

    def _longer(
        self, prompt: Sequence[int], begun: Response, sampling: Sampling, generator: torch.Generator
    ) -> Response:
        """Return a response grown by one token."""
        with torch.no_grad():
            logits = self._model(torch.tensor([*prompt, *begun.tokens]))[-1]
        row = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
        drawn = torch.multinomial(row.exp(), 1, generator=generator)
        token = int(drawn if sampling.temperature else logits.argmax())
        reason: Literal["stop", "length", "unfinished"] = "unfinished"
        if len(begun.tokens) + 1 == sampling.max_tokens:
            reason = "length"
        if token == self._end:
            reason = "stop"
        return continued(begun, Response((token,), (float(row[token]),), reason))

    def begin_update(self) -> None:
        """Wake up, so that weights can be filled in."""
        self._sleeps = False

    def finish_update(self) -> None:
        """Do nothing: there are no caches to clear."""

    def sleep(self) -> None:
        """Forget the weights, like an engine on a GPU."""
        self._sleeps = True
        for weight in self.weights.values():
            weight.fill_(math.nan)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
