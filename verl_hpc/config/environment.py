"""Settings of environments, which answer the model between its turns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from verl_hpc.config.explain import near_or_all
from verl_hpc.section import (
    OWN_NAME,
    Options,
    PathText,
    Positive,
    Seconds,
    Section,
    chosen_by,
    is_own,
)

PROGRAM_S = 5.0
"""Seconds that a program of environment python may take, unless its options say otherwise."""
ENVIRONMENTS = ("calculator", "python", "reasoning_gym")


def _environment(name: str) -> str:
    if name not in ENVIRONMENTS and not is_own(name):
        hint = near_or_all(name, ENVIRONMENTS)
        raise ValueError(f"no such environment; {hint}; your own is named {OWN_NAME}")
    return name


class EnvironmentConfig(Section):
    """Conversations of several turns: what the model says is answered, and it continues."""

    name: Annotated[PathText, AfterValidator(_environment)]
    """calculator does the sums that the model writes between <calc> and </calc>, python runs the
    programs between <python> and </python>, reasoning_gym says whether an answer is right;
    path/file.py:Name is a class of your own (docs/environments.md)."""
    options: Annotated[Options, chosen_by("name")] = {}
    """Keyword arguments of the class."""
    max_turns: Annotated[Positive, Field(ge=2)] = 4
    """Most turns of the model; rollout.max_response_tokens limits all of them and the observations
    between, together."""
    max_conversations: Positive = 128
    """Responses of one engine that have an environment at a time: each is a process and an open
    file. Others wait after their first turn."""
    role: Literal["user", "tool"] = "user"
    """Role of the message that holds an observation, where prompts are chats."""
    on_error: Literal["stop", "end"] = "stop"
    """Effect of an exception in a step, or of a step that takes too long: end the run, or end the
    conversation and count it."""
    timeout_s: Seconds = 30.0
    """Longest that one step may take."""
    import_timeout_s: Seconds = 300.0
    """Longest that importing the class's file may take, and longest that making it may."""

    @model_validator(mode="after")
    def _has_time_for_a_program(self) -> EnvironmentConfig:
        program_s = self.options.get("timeout_s", PROGRAM_S)
        runs = self.name == "python" and isinstance(program_s, float | int)
        if runs and program_s >= self.timeout_s:
            raise ValueError(
                f"options.timeout_s = {program_s:g}, which a program may take, is not below "
                f"timeout_s = {self.timeout_s:g}, which a step may take; lower it, or raise "
                "timeout_s"
            )
        return self
