"""Determine how a run reads its prompts, and warn if that may be unintended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.schema import MANIFEST
from verl_hpc.config.run import RunConfig
from verl_hpc.data.problem import Source
from verl_hpc.data.prompts import Encoder
from verl_hpc.data.turns import special_tokens
from verl_hpc.errors import DataError

PROMPT_FORM = "prompts"
"""Key of the form of prompts in a run's fingerprint."""
CHAT, TEXT = "through the chat template", "texts as they stand"
RENDERED = "texts that a chat template has written"

_logger = logging.getLogger(__name__)


def prompt_form(encoder: Encoder, source: Source) -> str:
    """Return how the first prompt of a data set is read; empty for a malformed row."""
    try:
        problem = source[0]
    except DataError:  # data.check says when that matters
        return ""
    if encoder.is_chat(problem):
        return CHAT
    is_rendered = (
        isinstance(problem.prompt, str)
        and encoder.template.exists
        and special_tokens(encoder.tokenizer).search(problem.prompt)
    )
    return RENDERED if is_rendered else TEXT


def say_what_is_unused(
    config: RunConfig, encoder: Encoder, form: str, evaluation: Mapping[str, Source]
) -> None:
    """Warn that a chat template exists but is not applied, unless the configuration says so or the
    model was trained that way.

    Args:
        config: the run's configuration.
        encoder: encodes its prompts.
        form: `prompt_form` of its training prompts.
        evaluation: evaluation data by name.
    """
    if config.data.chat != "auto" or not encoder.template.exists:
        return
    if form != TEXT:
        texts = [name for name, rows in evaluation.items() if prompt_form(encoder, rows) == TEXT]
        if form and texts:
            _logger.warning(
                "evaluation.sets: %s: prompts are plain texts, to which the chat template is not "
                "applied, and those of training are %s. data.chat=always applies it to all, and "
                "data.chat=never to none",
                ", ".join(texts),
                form,
            )
        return
    if _form_of_step(Path(config.model.path)) == form:
        return
    _logger.warning(
        "the tokenizer has a chat template, and prompts are plain texts, to which it is not "
        "applied: an instruct model answers such prompts badly. data.chat=always applies it, and "
        "data.chat=never says that this is meant"
    )


def _form_of_step(path: Path) -> str | None:
    """Return the form of prompts of the run that wrote a step; None if `path` is not a step, or
    lacks it."""
    if not (path / MANIFEST).is_file():
        return None
    step = Step(path, check_files=False)
    return step.state.fingerprint.get(PROMPT_FORM) if step.is_of_a_run else None
