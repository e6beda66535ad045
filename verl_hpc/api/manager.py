"""Prompts to responses with their log-probs, by whichever actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from verl_hpc.api.batch import Batch, Trajectory
from verl_hpc.api.modules import as_actor, check_tokenizer, end_tokens
from verl_hpc.api.prompts import asked, check_lengths, ids_of
from verl_hpc.config.arguments import checked
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.generation.slots import seed_of
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.module import ModuleRollout
from verl_hpc.rollout.protocol import Feed, Request, Response, Sampling
from verl_hpc.section import NonNegativeFinite, Number, Positive


class RolloutManager:
    """Answers prompts; the same seed, prompts, weights and `max_batch_size` give the same responses
    (with a `vLLMActor` also another `max_batch_size`: it draws for each response alone).

    Of several ranks (mpiexec, srun) each answers its own prompts with its own model, and waits for
    no other: give each its share, and those that have the same prompts a seed each.

    Args:
        actor: an `ActorModel`, or a `vLLMActor`.
        tokenizer: the actor's tokenizer.
        num_samples: responses to each prompt.
        temperature: temperature that tokens are sampled at; 0 takes the likeliest.
        top_p: only the likeliest tokens that have this much probability together.
        max_prompt_length: longest prompt, in tokens; a longer one is an error.
        max_response_length: longest response, in tokens.
        max_batch_size: responses that are generated at a time.
        seed: seed of the samples.

    Raises:
        ConfigError, ModelError: an actor that cannot answer, or settings that are not allowed.
    """

    @checked
    def __init__(
        self,
        actor: Any,
        tokenizer: Any,
        num_samples: Positive = 1,
        temperature: NonNegativeFinite = 1.0,
        top_p: Annotated[Number, Field(gt=0.0, le=1.0)] = 1.0,
        max_prompt_length: Positive = 512,
        max_response_length: Positive = 64,
        max_batch_size: Positive = 256,
        seed: int = 0,
    ) -> None:
        check_tokenizer(tokenizer, "RolloutManager")
        self.tokenizer, self.num_samples, self.seed = tokenizer, num_samples, seed
        self.calls = 0
        self._limit, self._at_a_time = max_prompt_length, max_batch_size
        self._sampling = Sampling(max_response_length, temperature, top_p)
        self._vllm = actor if getattr(actor, "generates_only", False) else None
        if self._vllm is None:
            module = as_actor(actor, "RolloutManager: actor")
            config = RolloutConfig(
                engine="hf",
                temperature=temperature,
                top_p=top_p,
                max_num_seqs=max_batch_size,
                max_response_tokens=max_response_length,
            )
            ends = end_tokens(module, tokenizer)
            self._engine = ModuleRollout(module, ends, config, {}, ShardMap({}, []))

    def generate(self, prompts: Any, references: Sequence[Any] | None = None) -> Batch:
        """Return `num_samples` responses to each prompt, neighbours of each other.

        Args:
            prompts: texts, token ids, or a batch of a `DataProvider`, as of `PPOTrainer.step`.
            references: what is right, of each prompt.

        Raises:
            DataError: no prompts, or one that is too long.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        problems = asked(prompts, self.tokenizer, None, references)
        check_lengths(problems, self._limit)
        each = [problem for problem in problems for _ in range(self.num_samples)]
        ids = [ids_of(problem) for problem in each]
        seeds = [seed_of(self.seed, "manager", self.calls, i) for i in range(len(ids))]
        self.calls += 1
        return Batch(
            Trajectory(p, r.tokens, r.log_probs, r.finish_reason == "length", self.tokenizer)
            for p, r in zip(each, self._responses(ids, seeds), strict=True)
        )

    def _responses(self, ids: list[list[int]], seeds: list[int]) -> list[Response]:
        if self._vllm is None:
            feed = Feed([Request(*pair) for pair in zip(ids, seeds, strict=True)])
            self._engine.generate(feed, self._sampling)
            return feed.responses
        answers: list[Response] = []
        for start in range(0, len(ids), self._at_a_time):
            part = slice(start, start + self._at_a_time)
            answers += self._vllm.respond(ids[part], self._sampling, seeds[part])
        return answers
