"""The configuration of a run: its sections, its roles, and that all of them agree."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from verl_hpc.config.agreement.run import check_agreement
from verl_hpc.config.roles import RoleSettings, calls_reward, generates, role_settings
from verl_hpc.config.secret import secrets_in
from verl_hpc.config.sections import RunSections


class RunConfig(RunSections):
    """Everything that decides what a run computes. The same file and seed give the same weights."""

    @property
    def role_settings(self) -> dict[str, RoleSettings]:
        """Every role of the run by its name, the actor first."""
        return role_settings(self)

    @property
    def generates(self) -> bool:
        """Whether the run samples responses."""
        return generates(self)

    @property
    def calls_reward(self) -> bool:
        """Whether the reward function scores responses to train on (`roles.calls_reward`)."""
        return calls_reward(self)

    @model_validator(mode="before")
    @classmethod
    def _first_task_is_the_default(cls, tree: Any) -> Any:
        """Take recipe and data.train of the first task where the run has none of its own."""
        tasks = tree.get("tasks") if isinstance(tree, dict) else None
        first = next(iter(tasks.values()), None) if isinstance(tasks, dict) else None
        if not isinstance(first, dict):
            return tree
        tree = {name: first[name] for name in ("recipe",) if name in first} | tree
        data = tree.get("data", {})
        if "train" in first and isinstance(data, dict):
            tree["data"] = {"train": first["train"]} | data
        return tree

    @model_validator(mode="after")
    def _holds_no_secrets(self) -> RunConfig:
        """Settings are written into the run directory, its report and its checkpoints."""
        options: dict[str, Any] = {
            "rollout.engine_options": self.rollout.engine_options,
            "rollout.environment.options": getattr(self.rollout.environment, "options", {}),
        }
        for setting, algorithm in self.algorithms.items():
            for name in ("advantage", "loss", "preference"):
                options[f"{setting}.{name}"] = getattr(algorithm, name).model_extra or {}
        options |= {f"{n}.options": call.options for n, call in self.reward_calls.items()}
        options |= {f"{n}.options": getattr(s, "options", {}) for n, s in self.sources.items()}
        secrets = [n for section, values in options.items() for n in secrets_in(values, section)]
        secrets += secrets_in(self.model_dump(), free=False)
        if secrets:
            raise ValueError(
                f"{secrets[0]} looks like a secret, and a run's settings are written to its "
                "directory; export it as a variable, name that in the site profile's "
                "pass_environment, and read it from the environment"
            )
        return self

    @model_validator(mode="after")
    def _ends(self) -> RunConfig:
        if self.steps is None and self.epochs is None:
            raise ValueError("steps: is needed and not given; or give epochs")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"steps = {self.steps} and epochs = {self.epochs} are both given; leave one "
                "out, or set it to null"
            )
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> RunConfig:
        check_agreement(self)
        return self
