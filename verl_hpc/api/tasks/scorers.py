"""What scores a task's responses: a function, the section reward of a run, or a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Make the scorer of a task.

    Args:
        given: the trainer's reward of this task; None where it has none.
        device: device of a reward model.

    Raises:
        ConfigError: a reward in tasks.yaml and another one of the trainer's.
        RewardError, ModelError: one that cannot be used.
    """
    named = next((n for n in REWARDS if getattr(config, n) is not None), None)
    setting = f"tasks.{name}.{named or 'reward_function'}"
    if given is not None and named is not None:
        raise ConfigError(
            f"{setting}: the trainer's rewards has one for {name}, too; leave one of them out"
        )
    if config.reward is not None:
        return make_scorer(config.reward, setting)
    if config.reward_model is not None:
        given = model_reward(config.reward_model, device, setting)
    return scorer_of(given or config.reward_function, setting)


def model_reward(path: str, device: torch.device, setting: str) -> Callable[..., Any]:
    """Load a sequence classifier with one label, which reads the prompt and the response in its own
    tokens, as a reward function.

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
        prompts = [
            r.prompt if isinstance(r.prompt, str) else f"{text_of_prompt(r.prompt)}\n\n"
            for r in requests
        ]
        texts = [f"{p}{r.response}" for p, r in zip(prompts, requests, strict=True)]
        read = tokenizer(texts, padding=True, return_tensors="pt").to(device)
        with torch.no_grad():
            logits = model(input_ids=read.input_ids, attention_mask=read.attention_mask).logits
        scores: list[float] = logits[:, 0].float().tolist()
        return scores

    return score
