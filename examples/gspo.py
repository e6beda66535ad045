"""GSPO (arXiv 2507.18071, equations 5 to 7): GRPO with the ratio of whole sequences.

recipe: examples/gspo.py:gspo
algorithm: {aggregation: seq-mean-token-mean}
"""

from collections.abc import Sequence

import torch

from verl_hpc.config.algorithm import AlgorithmConfig, GrpoConfig
from verl_hpc.engines.protocol import TokenOutputs
from verl_hpc.errors import ConfigError
from verl_hpc.trainer.batch import ADVANTAGES, OLD_LOG_PROBS, Columns, Samples
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.operators.advantages import group_advantages
from verl_hpc.trainer.operators.optimise import MiniBatch, OptimiseSettings, optimise
from verl_hpc.trainer.placement import Placement
from verl_hpc.trainer.recipe import Metrics, Recipe, operator
from verl_hpc.trainer.recipes.grpo import scored_responses
from verl_hpc.trainer.role import Role

CLIP_LOW, CLIP_HIGH = 3e-4, 4e-4
"""Of the paper's section 5.1: ratios of sequences move far less than those of tokens."""
LARGEST_LOG_RATIO = 10.0


def sequence_loss(
    old: torch.Tensor, log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """-min(s A, clip(s) A) at every token, (B, T): s is the geometric mean of the ratios of a
    sequence, and its gradient goes to each of its tokens alike."""
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    log_ratio = ((log_probs - old) * mask).sum(-1, keepdim=True) / count
    of_token = log_probs - log_probs.detach() + log_ratio.detach()
    ratio = of_token.clamp(max=LARGEST_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return torch.maximum(-advantages * ratio, -advantages * clipped)


@operator(changes_state=True)
def update_gspo(
    place: Placement,
    actor: Role,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    old: Columns,
    advantages: Columns,
) -> tuple[tuple[()], Metrics]:
    def loss(
        batch: MiniBatch, indices: Sequence[int], outputs: Sequence[TokenOutputs]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        log_probs, mask = batch.responses(indices, [o.log_probs for o in outputs])
        losses = sequence_loss(
            batch.column(old, OLD_LOG_PROBS, indices),
            log_probs,
            batch.column(advantages, ADVANTAGES, indices),
            mask,
        )
        return batch.aggregation(losses, mask), {}

    metrics = optimise(place, actor, settings, samples, sequences, loss)
    return (), {f"{actor.name}/{name}": value for name, value in metrics.items()}


def check(algorithm: AlgorithmConfig) -> None:
    """Raises: ConfigError: a setting that the loss above has no part for."""
    if algorithm.kl.placement == "loss":
        raise ConfigError(
            "algorithm.kl.placement = loss: gspo has no KL in its loss; choose reward or none"
        )
    if algorithm.correction is not None:
        raise ConfigError(
            f"algorithm.correction = {algorithm.correction.model_dump()}: gspo's ratio is of whole "
            "sequences, and weighs no tokens; leave it out"
        )
    if algorithm.aggregation != "seq-mean-token-mean":
        raise ConfigError(
            f"algorithm.aggregation = {algorithm.aggregation}: gspo weighs all sequences alike "
            "(equation 5); choose seq-mean-token-mean"
        )


def gspo(run: RunContext) -> Recipe:
    check(run.config.algorithm)
    recipe = scored_responses("gspo", run)
    recipe.operator(group_advantages, settings=GrpoConfig(), place="actor", name="advantages")
    temperature = run.config.rollout.temperature
    return recipe.operator(
        update_gspo,
        roles=["actor"],
        settings=run.settings.steps(temperature),
        name="update_actor",
    )
