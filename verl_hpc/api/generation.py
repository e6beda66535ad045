"""Arguments of transformers' `generate`, in vLLM's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from verl_hpc.api.prompts import plain
from verl_hpc.config.explain import explain, shown
from verl_hpc.config.rollout import HOTTEST_VLLM, Temperature
from verl_hpc.errors import ConfigError
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.section import (
    Fraction,
    Integer,
    NonNegative,
    Number,
    Positive,
    PositiveFinite,
    Section,
    Seed,
)

_WHO = "vLLMActor.generate"
_NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "length_penalty", "typical_p"), 1),
    **dict.fromkeys(("return_dict_in_generate", "output_scores", "early_stopping"), False),
    "use_cache": True,
}
"""Arguments of transformers that vLLM does not have, with the value that asks for nothing."""

NonEmptyText = Annotated[str, Field(min_length=1)]


class Generation(Section):
    """What `vLLMActor.generate` takes besides prompts."""

    max_new_tokens: Positive | None = None
    """Longest response; 20 where max_length says nothing either, as with transformers."""
    max_length: Positive | None = None
    """Longest prompt with its response; max_new_tokens goes before it."""
    do_sample: Annotated[bool, Field(strict=True)] = True
    """False takes the likeliest token each time."""
    temperature: Annotated[Temperature, Field(le=HOTTEST_VLLM)] = 1.0
    top_p: Annotated[Number, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[Integer, Field(ge=-1, le=2**31 - 1)] = -1
    min_p: Fraction = 0.0
    repetition_penalty: PositiveFinite = 1.0
    seed: Seed = 0
    stop_strings: NonEmptyText | list[NonEmptyText] = []
    """Texts that end a response, and are its end."""
    eos_token_id: NonNegative | list[NonNegative] | None = None
    """Tokens that end a response, in the place of the model's own; with [] it is as long as it
    may be."""
    pad_token_id: NonNegative = 0

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Generation:
        """Check arguments by name; None asks for nothing.

        Raises:
            ConfigError: one that is not honoured, with the reason, or a value that is not allowed.
        """
        given = {k: plain(v) for k, v in arguments.items() if v is not None}
        for name in given.keys() & _NOTHING:
            if (value := given.pop(name)) != _NOTHING[name]:
                raise ConfigError(
                    f"{_WHO}: {name} = {shown(value)} is not honoured: vLLM samples one response "
                    "to each prompt, and returns its tokens; RolloutManager takes several and has "
                    "their log-probs"
                )
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ConfigError(f"{_WHO}:\n{explain(error, cls)}") from None

    def sampling(self, longest: int) -> Sampling:
        """Return how tokens are chosen, for prompts of at most `longest` tokens.

        Raises:
            ConfigError: max_length leaves no room for a response.
        """
        max_tokens = self.max_new_tokens or (self.max_length or longest + 20) - longest
        if max_tokens < 1:
            raise ConfigError(
                f"{_WHO}: max_length = {self.max_length}, and a prompt has {longest} tokens; raise "
                "it, or give max_new_tokens"
            )
        stop = self.stop_strings
        return Sampling(
            max_tokens,
            self.temperature if self.do_sample else 0.0,
            self.top_p,
            self.top_k,
            self.min_p,
            self.repetition_penalty,
            (stop,) if isinstance(stop, str) else tuple(stop),
        )

    @property
    def ends(self) -> list[int] | None:
        """Tokens that end a response; None for the model's own."""
        return [self.eos_token_id] if isinstance(self.eos_token_id, int) else self.eos_token_id
