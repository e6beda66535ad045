"""Older names of verl's keys, and the shorter ones that tutorials teach, as keys of today."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_hpc.migration.row import same
from verl_hpc.migration.values import Refused

OWN = "verl_hpc."
"""Before a setting of ours that verl has no key for: `verl_hpc.reward.function=exact_match`."""
ACTOR = "actor_rollout_ref.actor"
_REWARD, _ROLLOUT = "reward.reward_model", "actor_rollout_ref.rollout"

RENAMED: Mapping[str, str] = {
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.enable": f"{_REWARD}.enable",
    "reward_model.enable_resource_pool": f"{_REWARD}.enable_resource_pool",
    "reward_model.n_gpus_per_node": f"{_REWARD}.n_gpus_per_node",
    "reward_model.nnodes": f"{_REWARD}.nnodes",
    "reward_model.model.path": f"{_REWARD}.model_path",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.overlong_buffer": "reward.reward_kwargs.overlong_buffer_cfg",
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.model.optim": "critic.optim",
}
"""Keys, and sections with all that is below them, that verl has renamed."""

TUTORIAL: Mapping[str, tuple[str, ...]] = {
    "model.pretrain_model_path": ("actor_rollout_ref.model.path",),
    "model.path": ("actor_rollout_ref.model.path",),
    "model.tokenizer_path": ("actor_rollout_ref.model.tokenizer_path",),
    "model.critic_model_path": ("critic.model.path",),
    "model.reward_function": (f"{OWN}reward.function",),
    "reward_function": (f"{OWN}reward.function",),
    "model.reward_model_path": (f"{_REWARD}.model_path",),
    "actor_model": ("actor_rollout_ref.model.path",),
    "critic_model": ("critic.model.path",),
    "data.train_path": ("data.train_files",),
    "data.val_path": ("data.val_files",),
    "data.test_path": ("data.val_files",),
    "data.batch_size": ("data.train_batch_size",),
    "batch_size": ("data.train_batch_size",),
    "max_prompt_length": ("data.max_prompt_length",),
    "max_response_length": ("data.max_response_length",),
    "num_samples": (f"{_ROLLOUT}.n",),
    "temperature": (f"{_ROLLOUT}.temperature",),
    "adv_estimator": ("algorithm.adv_estimator",),
    "gamma": ("algorithm.gamma",),
    "lam": ("algorithm.lam",),
    "ppo_epochs": (f"{ACTOR}.ppo_epochs",),
    "value_loss_coef": ("algorithm.value_loss_coef",),
    "algorithm.clip_range": (f"{ACTOR}.clip_ratio",),
    "clip_range": (f"{ACTOR}.clip_ratio",),
    "algorithm.entropy_coef": (f"{ACTOR}.entropy_coeff",),
    "algorithm.ppo_epochs": (f"{ACTOR}.ppo_epochs",),
    "algorithm.kl_coef": ("algorithm.kl_ctrl.kl_coef",),
    "kl_coef": ("algorithm.kl_ctrl.kl_coef",),
    "algorithm.lr": (f"{ACTOR}.optim.lr",),
    "lr": (f"{ACTOR}.optim.lr",),
    "learning_rate": (f"{ACTOR}.optim.lr",),
    "critic_lr": ("critic.optim.lr",),
    "adam_eps": (f"{ACTOR}.optim.override_optimizer_config.eps",),
    "engine.actor_type": (f"{ACTOR}.strategy",),
    "engine.critic_type": ("critic.strategy",),
    "engine.rollout_type": (f"{_ROLLOUT}.name",),
    "engine.num_gpus": ("trainer.n_gpus_per_node",),
    "rollout_per_device_batch_size": (f"{_ROLLOUT}.max_num_seqs",),
    "train_micro_batch_size_per_gpu": (f"{ACTOR}.ppo_micro_batch_size_per_gpu",),
    "total_epochs": ("trainer.total_epochs",),
    "epochs": ("trainer.total_epochs",),
    "steps": ("trainer.total_training_steps",),
    "output_dir": ("trainer.default_local_dir",),
    "seed": ("data.seed",),
}
"""Names of tutorials, and the keys that they mean."""

_ALGORITHMS = {
    "ppo": "gae",
    "grpo": "grpo",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce++": "reinforce_plus_plus",
    "reinforce_plus_plus": "reinforce_plus_plus",
}
_PLACED = {
    "placement.actor_devices": "actor",
    "placement.critic_devices": "critic",
    "placement.reward_devices": "reward",
    "placement.reference_devices": "reference",
    "placement.rollout_devices": "rollout",
}


@dataclass(frozen=True)
class Computed:
    """A tutorial's key whose keys of today depend on others that are given."""

    keys: tuple[str, ...]
    says: str
    make: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]


def _algorithm(value: Any, _: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _ALGORITHMS.get(str(value).lower())
    if found is None and value in ("dapo", "dr_grpo", "prime"):
        raise Refused("algorithm", "is several settings here", "those of docs/algorithms.md")
    if found is None:
        near = "recipe (sft, dpo, kto, ...), or algorithm.advantage.name"
        raise Refused("algorithm", f"expected one of {', '.join(_ALGORITHMS)}", near)
    return {"algorithm.adv_estimator": found}


def _per_rank(value: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    key, gpus = "data.batch_size_per_gpu", given.get("trainer.n_gpus_per_node")
    nodes = given.get("trainer.nnodes", 1)
    if not all(type(number) is int and number > 0 for number in (value, gpus, nodes)):
        raise Refused(key, "needs engine.num_gpus, and both are whole numbers", "batch.size")
    return {"data.train_batch_size": value * gpus * nodes}  # type: ignore[operator]


def _workers(value: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    ranks = given.get(f"{_ROLLOUT}.tensor_model_parallel_size", 1)
    if not all(type(number) is int and number > 0 for number in (value, ranks)):
        raise Refused("num_rollout_workers", "expected a whole number", "rollout.tensor_parallel")
    return {"trainer.n_gpus_per_node": value * ranks}


def _sharded(value: Any, _: Mapping[str, Any]) -> Mapping[str, Any]:
    if value is not True:
        raise Refused("use_fsdp", "expected true", "parallel.engine")
    return {f"{ACTOR}.strategy": "fsdp"}


def _placed(key: str, label: str) -> Computed:
    def make(value: Any, _: Mapping[str, Any]) -> Mapping[str, Any]:
        found = value if isinstance(value, list) else [value]
        whole = bool(found) and all(type(rank) is int for rank in found)
        if not whole or found != list(range(found[0], found[0] + len(found))):
            raise Refused(key, "expected neighbours, such as [0, 1]", f"placement.{label}")
        return {f"{OWN}placement.{label}": f"{found[0]}-{found[-1]}"}

    return Computed((f"{OWN}placement.{label}",), "neighbours: [0, 1] becomes 0-1", make)


COMPUTED: Mapping[str, Computed] = {
    "algorithm": Computed(
        ("algorithm.adv_estimator",), "ppo is gae; reinforce++ is spelt out", _algorithm
    ),
    "algorithm.name": Computed(("algorithm.adv_estimator",), "ppo is gae", _algorithm),
    "data.batch_size_per_gpu": Computed(
        ("data.train_batch_size",), "times engine.num_gpus", _per_rank
    ),
    "num_rollout_workers": Computed(
        ("trainer.n_gpus_per_node",), "engines of one rank, or of rollout's ranks", _workers
    ),
    "use_fsdp": Computed((f"{ACTOR}.strategy",), "fsdp", _sharded),
    **{key: _placed(key, label) for key, label in _PLACED.items()},
}
_WITH = {
    "algorithm.kl_coef": {"algorithm.use_kl_in_reward": True},
    "kl_coef": {"algorithm.use_kl_in_reward": True},
    "model.reward_model_path": {f"{_REWARD}.enable": True},
}
"""What else a tutorial's key says."""
_SHORT_DEFAULTS = {
    f"{_ROLLOUT}.tensor_model_parallel_size": 1,
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
}


@dataclass
class Modern:
    """What is given, as keys of today."""

    given: Mapping[str, Any]
    """Keys and values as they were written."""
    found: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The older name that a key was given by, if there is one."""
    refused: list[Refused] = field(default_factory=list)
    """Older names with values that say nothing, and two names of one key that differ."""

    def take(self, new: str, key: str, value: Any) -> None:
        """A value of a key that was given as `key`."""
        if new in self.found and not same(self.found[new], value):
            other = self.names.get(new, new)
            theirs = f"{other} = {self.given.get(other)}"
            why = f"= {self.given[key]}, but {theirs}, and both are {new}; give one"
            self.refused.append(Refused(key, why))
            return
        self.found[new] = value
        if new != key:
            self.names.setdefault(new, key)

    def compute(self, key: str, computed: Computed) -> None:
        try:
            made = computed.make(self.found.pop(key), self.found)
        except Refused as one:
            self.refused.append(one)
            return
        for new, value in made.items():
            self.take(new, key, value)


def modern(given: Mapping[str, Any]) -> Modern:
    """Keys of today for the older ones among those that are given."""
    made = Modern(given)
    for key, value in given.items():
        for new in _renamed(key):
            if new == key or value is not None:  # or verl's default of a name that it has replaced
                made.take(new, key, value)
    for key, computed in COMPUTED.items():
        if key in made.found:
            made.compute(key, computed)
    for key in given:
        for new, value in _WITH.get(key, {}).items():
            made.found.setdefault(new, value)
    if any(key in TUTORIAL or key in COMPUTED for key in given):
        # They leave these out, and mean what is least.
        size = made.found.get("data.train_batch_size")
        for key, value in {**_SHORT_DEFAULTS, f"{ACTOR}.ppo_mini_batch_size": size}.items():
            if value is not None:
                made.found.setdefault(key, value)
    return made


def _renamed(key: str) -> tuple[str, ...]:
    if key in TUTORIAL:
        return TUTORIAL[key]
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            return (new + key[len(old) :],)
    return (key,)
