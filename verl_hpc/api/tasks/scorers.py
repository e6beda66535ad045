"""What scores a task's responses: a function, the section reward of a run, or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from verl_hpc.api.loading import pretrained
from verl_hpc.api.rewards import Reward, scorer_of
from verl_hpc.api.tasks.settings import REWARDS, TaskConfig
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.rewards.request import Request, batched, text_of_prompt
from verl_hpc.rewards.scorer import Scorer, make_scorer


def task_scorer(name: str, config: TaskConfig, given: Reward, device: torch.device) -> Scorer:
    """The task's own.

    Args:
        given: of the trainer's `rewards`; None where it has none for this task.
        device: of a reward model.

    Raises:
        ConfigError: two of them.
        RewardError, ModelError: one that cannot be used.
    """
    where = f"tasks.{name}"
    named = next((n for n in REWARDS if getattr(config, n) is not None), None)
    if given is not None and named is not None:
        raise ConfigError(
            f"{where}.{named}: the trainer's rewards has one for {name}, too; leave one of them out"
        )
    if config.reward is not None:
        return make_scorer(config.reward, f"{where}.reward")
    if config.reward_model is not None:
        function = model_reward(config.reward_model, device, f"{where}.reward_model")
        return scorer_of(function, f"{where}.reward_model")
    return scorer_of(given or config.reward_function, f"{where}.reward_function")


def model_reward(path: str, device: torch.device, setting: str) -> Callable[..., Any]:
    """A sequence classifier with one label, which reads the prompt and the response in its own
    tokens.

    Raises:
        ModelError: transformers cannot load it, or it has several labels.
    """
    model = pretrained(AutoModelForSequenceClassification, setting, path)
    tokenizer = pretrained(AutoTokenizer, setting, path)
    if model.config.num_labels != 1:
        raise ModelError(
            f"{setting} = {path}: has {model.config.num_labels} labels; a score is one number"
        )
    model = model.to(device).eval()

    @batched
    def score(requests: Sequence[Request]) -> list[float]:
        texts = [f"{_text(request.prompt)}{request.response}" for request in requests]
        read = tokenizer(texts, padding=True, return_tensors="pt").to(device)
        with torch.no_grad():
            logits = model(input_ids=read.input_ids, attention_mask=read.attention_mask).logits
        found: list[float] = logits[:, 0].float().tolist()
        return found

    return score


def _text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    return prompt if isinstance(prompt, str) else f"{text_of_prompt(prompt)}\n\n"
