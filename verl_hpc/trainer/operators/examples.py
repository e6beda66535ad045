"""Rows of a data set as examples to imitate."""

from __future__ import annotations

import torch

from verl_hpc.data.prompts import encode_example, fit_prompt
from verl_hpc.data.sources import read_problems
from verl_hpc.trainer.batch import TOKENS, Columns, Prompts, Sample, Samples
from verl_hpc.trainer.deal import deal
from verl_hpc.trainer.workers import TRAIN, Workers


def examples(workers: Workers, prompts: Prompts) -> tuple[Samples, Columns]:
    """Encode a step's rows; every rank encodes all of them and keeps its replica's.

    Answers longer than rollout.max_response_tokens lose their end; prompts follow
    rollout.overlong_prompt.

    Raises:
        DataError: on every rank: a row without an answer, an overlong prompt, or no row left.
    """
    encoded = workers.session.control.together(lambda: _encode(workers, prompts))
    found = [
        Sample(i, i, len(prompt), len(answer), cut)
        for i, (prompt, answer, cut) in enumerate(encoded)
    ]
    samples = deal(workers, prompts.step, found)
    mine = samples.owned_by(TRAIN, workers.group_index(TRAIN))
    device = workers.session.device
    tokens = [torch.tensor([*encoded[i][0], *encoded[i][1]], device=device) for i in mine]
    return samples, Columns(mine, {TOKENS: tokens})


def _encode(workers: Workers, prompts: Prompts) -> list[tuple[list[int], list[int], bool]]:
    """(prompt ids, answer ids, whether the answer was cut) of each row that is kept."""
    config = workers.config
    limits = config.rollout
    found = []
    for problem in read_problems(workers.train_source, prompts.rows):
        prompt, answer = encode_example(problem, workers.tokenizer, config.data.chat)
        fitted = fit_prompt(prompt, limits.max_prompt_tokens, limits.overlong_prompt, problem.where)
        if fitted is not None:
            cut = len(answer) > limits.max_response_tokens
            found.append((fitted, answer[: limits.max_response_tokens], cut))
    return found
