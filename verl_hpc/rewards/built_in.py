"""The reward functions of this package, by name and by the origin of a row."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from verl_hpc.config.reward import REWARD_OPTIONS
from verl_hpc.config.reward_options import FormatOptions, LengthOptions
from verl_hpc.errors import RewardError
from verl_hpc.rewards import code, gsm8k, judge, math_reward, multiple_choice, reasoning_gym_reward
from verl_hpc.rewards.request import RewardFunction, taken


def exact_match(solution_str: str, ground_truth: Any) -> float:
    """Return 1 for equality, except for blanks at the ends, else 0.

    Raises:
        RewardError: the ground truth is blank, so that a response of nothing would be right, or a
            list or mapping, which no response could be.
    """
    if ground_truth is None:
        raise RewardError("the row has no ground_truth to compare with")
    truth = str(ground_truth).strip()
    several = isinstance(ground_truth, Collection) and not isinstance(ground_truth, str)
    if not truth or several:
        raise RewardError(
            f"ground_truth = {ground_truth!r:.100} is no answer that a response could be; "
            "exact_match needs a text or a number"
        )
    return float(solution_str.strip() == truth)


def accuracy(solution_str: str, ground_truth: Any) -> float:
    """Return 1 if `exact_match` or `math` gives 1, else 0: accuracy_reward of verl's tutorials.

    Raises:
        RewardError: the row has no ground truth.
    """
    given = solution_str, ground_truth
    return exact_match(*given) or math_reward.compute_score(*given)


def make_format(options: FormatOptions) -> RewardFunction:
    """Make a function that gives 1 if the options match a whole response, except white space at its
    ends, else 0."""
    # Each tag occurs once, and no other tag inside a pair of tags.
    inside = rf"(?:(?!</?(?:{'|'.join(options.tags)})>).)*"
    tags = r"\s*".join(f"<{tag}>{inside}</{tag}>" for tag in options.tags)
    form = re.compile(options.pattern or tags, re.DOTALL)

    def compute_score(solution_str: str) -> float:
        return float(any(form.fullmatch(text) for text in (solution_str, solution_str.strip())))

    return compute_score


def make_length(options: LengthOptions) -> RewardFunction:
    """Make a function that gives 0 for a wanted number of tokens, down to -1 for others."""

    def compute_score(response_ids: Sequence[int]) -> float:
        length = len(response_ids)
        if options.cap is not None:
            buffer = options.buffer or max(options.cap // 4, 1)
            return -min(max((length - (options.cap - buffer)) / buffer, 0.0), 1.0)
        assert options.target is not None
        return -min(abs(length - options.target) / (options.width or options.target), 1.0)

    return compute_score


BUILT_IN: Mapping[str, RewardFunction] = {
    "accuracy_reward": accuracy,
    "exact_match": exact_match,
    "gsm8k": gsm8k.graded,
    "math": math_reward.graded,
    "reasoning_gym": reasoning_gym_reward.compute_score,
}

MAKERS: Mapping[str, Callable[[Any], RewardFunction]] = {
    "code": code.make,
    "format": make_format,
    "judge": judge.make,
    "length": make_length,
    "multiple_choice": multiple_choice.make,
}
"""Makers of functions from their options (`config.reward.REWARD_OPTIONS`)."""

DATA_SOURCES: Mapping[str, str] = {
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "math": "math",
    "math_dapo": "math",
    "math_dapo_reasoning": "math",
    "aime*": "math",
    "numina_*": "math",
    "reasoning_gym/*": "reasoning_gym",
    "multiple_choice/*": "multiple_choice",
}
"""Patterns of data_source, first match first, and the function that scores their rows.

Those of mathematics are verl's. Their scores are 1 and 0, also where verl's DAPO gives 1 and -1.
"""


@cache
def function_for(data_source: str) -> RewardFunction:
    """Return the function that `DATA_SOURCES` names for rows from this source.

    Raises:
        RewardError: it names none.
    """
    for pattern, name in DATA_SOURCES.items():
        if fnmatchcase(data_source, pattern):
            return BUILT_IN[name] if name in BUILT_IN else MAKERS[name](REWARD_OPTIONS[name]())
    raise RewardError(
        f"data_source = {data_source!r} has no reward function; set reward.function to one of "
        f"{', '.join([*BUILT_IN, *MAKERS])}, or to path/to/file.py:function"
    )


def score_by_data_source(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float | Mapping[str, Any]:
    """Score with the function that `DATA_SOURCES` gives the row.

    Raises:
        RewardError: it gives none.
    """
    given: dict[str, Any] = {"data_source": data_source, "solution_str": solution_str}
    given |= {"ground_truth": ground_truth, "extra_info": extra_info}
    function = function_for(data_source)
    return function(**{name: given[name] for name in taken(function) if name in given})
