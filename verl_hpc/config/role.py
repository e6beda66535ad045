"""Settings of one model of a run, by its role, and of the ranks that a label has."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import OffloadConfig, OptimizerConfig, ParallelConfig
from verl_hpc.section import PathText, Section

FORMS = "one rank (3), neighbours (0-3), nodes (nodes 0-1), a share of all (1/2) or all"
SHARE = re.compile(r"(\d{1,6})/([1-9]\d{0,5})")
SPAN = re.compile(r"(nodes? +)?(\d{1,9})(?: *- *(\d{1,9}))?")


def _as_text(value: object) -> object:
    """Return a single rank, which YAML reads as a number, as text."""
    return str(value) if type(value) is int else value


def _check_ranks(text: str) -> str:
    text = text.strip()
    if text != "all" and not SHARE.fullmatch(text) and not SPAN.fullmatch(text):
        raise ValueError(f"expected {FORMS}")
    return text


Ranks = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_ranks)]
"""Ranks of a label."""

Head = Literal["language_model", "value", "score"]
"""What a model computes: the log-prob of each next token, a value of each token, or a score of a
whole sequence."""

RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]

ACTOR, CRITIC, REFERENCE, REWARD = "actor", "critic", "reference", "reward"
TEACHER = "teacher"
PRM, PRM_REFERENCE = "prm", "prm_reference"
"""An implicit process reward model, and its reference with the starting weights."""


class RoleConfig(Section):
    """One model of a run. What is null is taken from the sections that all roles share."""

    path: PathText | None = None
    """Weights to start from, as model.path, which is taken if null.
    The reference and prm then start as the actor does, and prm_reference as prm."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Element type of parameters and activations; model.dtype if null."""
    head: Head | None = None
    """language_model gives log-probs, value a number for each token, score one for a sequence
    (AutoModelForSequenceClassification with one label). null takes what goes with the role's name:
    value for critic and cost_critic, score for reward and cost, language_model for others."""
    trainable: bool | None = None
    """Whether it has an optimizer. null: actor, critic, cost_critic and prm have, and the role of
    recipe reward_model."""
    placement: RoleName | None = None
    """The label of `placement` whose ranks it has; null takes the one of its own name if there is
    one, else train; the reference then has the actor's, and prm_reference prm's."""
    parallel: ParallelConfig | None = None
    """Its layout on the ranks of its label, which others there need not have; parallel if null."""
    optimizer: OptimizerConfig | None = None
    """optimizer if null; a value head's learning rate is 1e-5 then."""
    offload: OffloadConfig | None = None
    """offload if null."""
    lora: LoraConfig | Literal["none"] | None = None
    """Its adapters; lora if null, and none trains all of its weights in spite of lora."""
