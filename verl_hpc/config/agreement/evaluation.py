"""Checks of section evaluation against the rest of a run."""

from __future__ import annotations

from verl_hpc.config.rollout import HOTTEST_VLLM
from verl_hpc.config.sections import RunSections


def check_evaluation(config: RunSections) -> None:
    """Raises: ValueError: evaluation data are missing or given twice, or ask for what the recipe or
    the engine cannot do."""
    evaluation = config.evaluation
    if evaluation.sets and config.data.evaluation is not None:
        raise ValueError(
            f"data.evaluation and evaluation.sets ({', '.join(evaluation.sets)}) are both given; "
            "make data.evaluation one of the sets, the first if stop_at is about it"
        )
    if evaluation.answers_alone and config.compares_answers:
        raise ValueError(
            f"{evaluation.answers_alone} with recipe: {config.recipe}, which compares pairs; give "
            "them as data.evaluation, and leave this out"
        )
    if evaluation.wanted and not config.evaluation_sets:
        setting = "every > 0" if evaluation.every else "at_start"
        raise ValueError(f"evaluation.{setting} needs data.evaluation, or evaluation.sets")
    if evaluation.stop_at is not None and not evaluation.every:
        raise ValueError("evaluation.stop_at needs evaluation.every > 0")
    for name, chosen in evaluation.sets.items():
        if config.rollout.engine == "vllm" and chosen.chosen_temperature > HOTTEST_VLLM:
            raise ValueError(
                f"evaluation.sets.{name}.temperature = {chosen.chosen_temperature:g}: vLLM "
                f"samples up to {HOTTEST_VLLM:g}; lower it, or choose rollout.engine: hf"
            )
