"""How responses are scored."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from verl_hpc.config.explain import explain, near_or_all
from verl_hpc.package import FOLDER
from verl_hpc.section import (
    Finite,
    Options,
    PositiveFinite,
    ProperFraction,
    Seconds,
    Section,
    check_path_text,
    chosen_by,
)

_FUNCTIONS = iter_modules([str(FOLDER / "rewards" / "functions")])
REWARD_FUNCTIONS = ("auto", *sorted(module.name for module in _FUNCTIONS))
"""Names of the built-in reward functions, each a file of `rewards/functions`; the user's are named
path/to/file.py:function."""


def reward_module(function: str) -> ModuleType:
    """Import the file of a built-in function; none of them imports a large library by itself."""
    return import_module(f"verl_hpc.rewards.functions.{function}")


def options_of(function: str) -> type[Section] | None:
    """Return the section of a function's options; None if it takes keyword arguments."""
    if function == "auto" or function not in REWARD_FUNCTIONS:
        return None
    return getattr(reward_module(function), "Options", None)


def is_called_by_the_rank(function: str) -> bool:
    """Whether a function has many responses under way by itself, and needs no
    runtime.reward_processes."""
    is_ours = function != "auto" and function in REWARD_FUNCTIONS
    return is_ours and getattr(reward_module(function), "CALLED_BY_THE_RANK", False)


OnError = Literal["stop", "zero"]


def _reward_function(name: str) -> str:
    if name in REWARD_FUNCTIONS:
        return name
    if ":" in name:
        return check_path_text(name)
    hint = near_or_all(name, REWARD_FUNCTIONS)
    end = "" if hint.endswith("?") else ";"
    raise ValueError(f"no such function; {hint}{end} your own is named path/to/file.py:function")


FunctionName = Annotated[str, AfterValidator(_reward_function)]


def _check_options(function: str, options: Mapping[str, Any]) -> None:
    """Raises: ValueError: the function has no such option, or not with such a value."""
    section = options_of(function)
    if section is None:
        return
    try:
        section.model_validate(options)
    except ValidationError as error:
        reasons = "; ".join(line.strip() for line in explain(error, section).splitlines())
        raise ValueError(f"options of {function}: {reasons}") from None


class TermConfig(Section):
    """One of several functions whose weighted sum is the score."""

    function: FunctionName
    """Function of this term, named like reward.function."""
    weight: Finite = 1.0
    """Factor of the function's score; negative for a penalty."""
    options: Annotated[Options, chosen_by("function")] = {}
    """Keyword arguments of the function."""
    on_error: OnError | None = None
    """Value of reward.on_error for this term alone, which counts 0 after an error; null takes
    reward.on_error."""
    timeout_s: Seconds | None = None
    """Value of reward.timeout_s for this term alone; null takes reward.timeout_s."""

    @model_validator(mode="after")
    def _options_fit(self) -> TermConfig:
        _check_options(self.function, self.options)
        return self


class SmoothingConfig(Section):
    """Scores measured against an exponential moving average of those of earlier steps.

    With the mean m and the mean of squares q of a step's scores, m' <- decay m' + (1 - decay) m and
    q' likewise, both divided by 1 - decay^steps, as Adam corrects its start. A score r becomes
    r - m', or (r - m') / sqrt(q' - m'^2 + 1e-8).

    The running mean as a baseline is that of REINFORCE (Williams 1992, reinforcement comparison);
    mean and deviation of past rewards are those of "Secrets of RLHF in Large Language Models, part
    I" (arXiv 2307.04964, section 5.3.1); the average with a corrected start is that of ReaLHF and
    MAPPO, which take it of values (arXiv 2103.01955).
    """

    decay: ProperFraction = 0.99
    """How much of the average stays from step to step; 0 takes each step's own mean."""
    by: Literal["mean", "mean_and_std"] = "mean_and_std"
    """Whether the mean of scores is only subtracted, or their standard deviation also divides."""
    clip: PositiveFinite | None = 5.0
    """Largest absolute value of a smoothed score; null does not clip."""


TermName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=60)]


class RewardConfig(Section):
    """How responses are scored."""

    function: FunctionName = "auto"
    """One of `REWARD_FUNCTIONS`, path/to/file.py:function, or auto: by each row's data_source
    (docs/rewards.md).

    A function of your own is called by keyword with those that it takes of `data_source`,
    `solution_str`, `ground_truth`, `extra_info`, `response_ids`, `turns`, `truncated`,
    `stop_reason`, `row` and `prompt`. One of two arguments is called as
    `function(response, ground_truth)`. It returns a number, or a mapping with one as `score`.
    """
    options: Annotated[Options, chosen_by("function")] = {}
    """Keyword arguments of the function."""
    terms: dict[TermName, TermConfig] = {}
    """In place of function and options: several functions by a name of yours, whose weighted sum is
    the score. Each one's mean is the metric reward/NAME."""
    on_error: OnError = "stop"
    """Effect of an exception or a NaN in the function: end the run, or score 0 and count it."""
    timeout_s: Seconds = 30.0
    """Longest one call may take; a longer one is an error as on_error says. A function of a whole
    list (docs/rewards.md) has as long for each response of the list."""
    import_timeout_s: Seconds = 300.0
    """Longest that importing the function's file may take; a longer one ends the run."""
    smoothing: SmoothingConfig | None = None
    """Measure scores against a moving average of those of earlier steps; null leaves them."""

    @model_validator(mode="after")
    def _fits(self) -> RewardConfig:
        _check_options(self.function, self.options)
        if self.terms and (self.function != "auto" or self.options):
            name = "options" if self.function == "auto" else "function"
            raise ValueError(f"terms and {name} exclude each other; make the function a term")
        return self

    def calls(self, setting: str = "reward") -> dict[str, RewardConfig]:
        """Return the functions to call by the setting that names each: one, or those of all terms.

        Args:
            setting: the setting that holds this reward.
        """
        if not self.terms:
            return {setting: self}
        return {
            f"{setting}.terms.{name}": RewardConfig(
                function=term.function,
                options=term.options,
                on_error=term.on_error or self.on_error,
                timeout_s=term.timeout_s or self.timeout_s,
                import_timeout_s=self.import_timeout_s,
            )
            for name, term in self.terms.items()
        }

    @property
    def functions(self) -> set[str]:
        """Names of all functions that are called."""
        return {call.function for call in self.calls().values()}
