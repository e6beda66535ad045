"""The update of one role alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_hpc.api.batch import Batch
from verl_hpc.api.loading import tokenizer_of
from verl_hpc.api.modules import as_actor
from verl_hpc.api.trainer import PPOTrainer
from verl_hpc.config.arguments import checked
from verl_hpc.errors import ConfigError


class PPORoleUpdater:
    """Trains a policy on responses that somebody else has generated and scored.

    Args:
        model: an `ActorModel`, an AutoModelForCausalLM, or the pair of `get_actor_critic`, of which
            both are trained.
        engine: hybrid: the process that trains also generates, with the same weights.
        overlap_comm: in one process there is nothing to communicate, and so nothing to overlap:
            True and False compute the same.
        tokenizer: the model's; that of its directory if None.
        config: settings as `PPOTrainer` has them.

    Raises:
        ConfigError: another engine, with what serves instead.
    """

    @checked
    def __init__(
        self,
        model: Any,
        engine: str = "hybrid",
        overlap_comm: bool = True,
        *,
        tokenizer: Any = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if engine != "hybrid":
            raise ConfigError(
                f"PPORoleUpdater: engine = {engine!r}; in one process it is hybrid. Megatron-core "
                "on several ranks, with roles on ranks of their own, is a run of `python -m "
                "verl_hpc train` (docs/placements.md)"
            )
        model, critic = model if isinstance(model, tuple) and len(model) == 2 else (model, None)
        model = as_actor(model, "PPORoleUpdater: model")
        if tokenizer is None:
            tokenizer = tokenizer_of(model, "PPORoleUpdater")
        self.engine, self.overlap_comm = engine, overlap_comm
        self.trainer = PPOTrainer(model, critic, tokenizer, config)

    def update(self, batch: Batch, rewards: Sequence[float]) -> dict[str, float]:
        """Take one step on a `RolloutManager`'s responses; metrics as `PPOTrainer.step`'s."""
        return self.trainer.update(batch, rewards)
