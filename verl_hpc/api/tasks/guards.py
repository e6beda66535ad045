"""The guards of a trainer: who sees a fall, and where training goes back to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from verl_hpc.api.tasks.guard import MetricDrop, SafetyGuard
from verl_hpc.api.tasks.progress import Checkpoints
from verl_hpc.api.tasks.settings import TasksConfig
from verl_hpc.errors import ConfigError, TrainingError, VerlHpcError


class Guards:
    """Guards, and what earlier rollbacks have changed.

    Args:
        config: of the tasks.
    """

    def __init__(self, config: TasksConfig) -> None:
        self._config = config
        self._guards: list[SafetyGuard] = []
        self.num_rollbacks = 0
        self.lr_factor = 1.0
        """Of all learning rates."""

    def __len__(self) -> int:
        return len(self._guards)

    @property
    def seed(self) -> int:
        """Of the samples."""
        return self._config.seed + self.num_rollbacks

    def add(self, guard: SafetyGuard, weights: Mapping[str, float]) -> None:
        """See `Trainer.add_guard`.

        Args:
            weights: of tasks, as far as they are known.
        """
        if any(guard is other for other in self._guards):
            raise ConfigError(
                f"add_guard: this SafetyGuard of {', '.join(guard.metrics)} is there already; a "
                "second look at a step would count it twice"
            )
        every, keep = self._config.checkpoint_every, self._config.keep
        prefixes = [f"task/{name}/" for name in self._config.tasks]
        for metric in guard.metrics:
            if not metric.startswith(tuple(prefixes)):
                raise ConfigError(
                    f"add_guard: monitor_metrics: {metric} is not of a task; names begin with "
                    f"{' or '.join(prefixes)}"
                )
        for name, weight in weights.items():
            unseen = [m for m in guard.metrics if m.startswith(f"task/{name}/")]
            if unseen and not weight:
                raise ConfigError(
                    f"add_guard: monitor_metrics: {unseen[0]} is of a task whose weight is 0, and "
                    "would never be seen; give the task a weight"
                )
        if not every:
            raise ConfigError(
                "add_guard: checkpoint_every = 0 of tasks.yaml saves nothing to go back to; set it"
            )
        if keep is not None and (keep - 1) * every < guard.rollback_steps:
            raise ConfigError(
                f"add_guard: rollback_steps = {guard.rollback_steps} with checkpoint_every = "
                f"{every} and keep = {keep} of tasks.yaml: steps so old are gone; set keep to at "
                f"least {-(-guard.rollback_steps // every) + 1}, or to null"
            )
        self._guards.append(guard)

    def look(
        self, step: int, metrics: Mapping[str, float], learned: Iterable[str]
    ) -> tuple[SafetyGuard, MetricDrop] | None:
        """The first guard that sees a fall.

        Args:
            step: that was taken.
            metrics: of it.
            learned: names of tasks that took part.

        Raises:
            ConfigError: one of these has no metric of a name that is monitored.
        """
        for guard in self._guards:
            for name in learned:
                guard.check_names(f"task/{name}/", metrics)
            fall = guard.look(step, metrics)
            if fall is not None:
                return guard, fall
        return None

    def not_finite(
        self, step: int, task: str, error: VerlHpcError
    ) -> tuple[SafetyGuard, MetricDrop] | None:
        """The first guard of a task whose step met what is not finite.

        Args:
            step: that could not be taken.
            task: its name.
            error: what it met.
        """
        for guard in self._guards:
            fall = guard.not_finite(step, f"task/{task}/", str(error))
            if fall is not None:
                return guard, fall
        return None

    def target(self, guard: SafetyGuard, fall: MetricDrop, checkpoints: Checkpoints) -> Path:
        """The step to go back to.

        It is the oldest one where none is as old as the guard asks for.

        Raises:
            TrainingError: it fell too often, or nothing was saved before it fell.
        """
        what = f"SafetyGuard: {fall}"
        if self.num_rollbacks >= guard.max_rollbacks:
            raise TrainingError(
                f"{what} after {self.num_rollbacks} rollbacks (max_rollbacks); lower the learning "
                "rates, or look at the reward"
            )
        found = checkpoints.before(fall.step - guard.rollback_steps)
        if found is None:
            raise TrainingError(f"{what}, and no step was saved before")
        return found

    def state(self) -> dict[str, dict[str, float]]:
        """All that changes, as numbers by name, by part."""
        own = {"rollbacks": float(self.num_rollbacks), "lr_factor": self.lr_factor}
        return {
            "watch": own,  # its name in checkpoints
            **{f"guard_{i}": guard.state() for i, guard in enumerate(self._guards)},
        }

    def load_state(self, parts: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from what `state` gave."""
        own = parts["watch"]
        self.num_rollbacks, self.lr_factor = int(own["rollbacks"]), own["lr_factor"]
        for i, guard in enumerate(self._guards):
            guard.load_state(parts.get(f"guard_{i}", {}))
