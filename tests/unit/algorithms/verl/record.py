"""Write verl.json: what functions of verl 0.9.1 make of some random arrays, in float64.

usage: python -m tests.unit.algorithms.verl.record DIRECTORY_WITH_THE_PACKAGE_VERL

Only torch and numpy are needed beside verl's files: of what these import, whatever is not installed
is stood in for, which the recorded functions never call.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path

import torch

from tests.unit.algorithms.verl.arrays import DIVERGENCES, arrays, far, is_plain

FILES = {
    "verl.utils.groupwise": "utils/groupwise.py",
    "verl.utils.torch_functional": "utils/torch_functional.py",
    "verl.trainer.ppo.core_algos": "trainer/ppo/core_algos.py",
    "verl.trainer.ppo.rollout_corr_helper": "trainer/ppo/rollout_corr_helper.py",
}
STOOD_IN = (
    "ray omegaconf tensordict verl verl.utils verl.utils.import_utils verl.utils.device "
    "verl.trainer verl.trainer.config verl.trainer.config.algorithm verl.trainer.ppo verl.workers "
    "verl.workers.config verl.workers.config.actor verl.protocol"
)


class Config(dict):
    """Settings by name or by attribute, as verl reads them."""

    def __getattr__(self, name):
        return self.get(name)


class Proto:
    """In the place of DataProto."""

    def __init__(self, batch):
        self.batch = batch

    @classmethod
    def from_dict(cls, tensors):
        return cls(tensors)


class Module(types.ModuleType):
    """Any name of it is a class."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def load(root: Path):
    """verl's two modules."""
    for name in STOOD_IN.split():
        module = Module(name)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, short = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], short, module)
    sys.modules["verl.utils.import_utils"].deprecated = lambda *_, **__: lambda found: found
    sys.modules["verl.workers.config"].ActorConfig = Config
    sys.modules["verl.protocol"].DataProto = Proto
    for name, file in FILES.items():
        spec = importlib.util.spec_from_file_location(name, root / "verl" / file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        parent, _, short = name.rpartition(".")
        setattr(sys.modules[parent], short, module)
        spec.loader.exec_module(module)
        if short == "groupwise":
            for function in ("as_torch_index", "group_mean_std"):
                setattr(sys.modules["verl.utils"], function, getattr(module, function))
    return sys.modules["verl.trainer.ppo.core_algos"], sys.modules[name]


def advantages(core, given):
    """Verl's advantages by name, and returns where they are others."""
    rewards, mask = given["rewards"], given["mask"]
    index = given["groups"].numpy()
    sums = {"token_level_rewards": rewards, "response_mask": mask}
    grouped = sums | {"index": index}
    baseline = grouped | {"old_log_probs": given["old"], "sum_pi_squared": given["squares"]}
    parts = {
        "config": Config(gdpo_reward_keys=["a", "b"], gdpo_reward_weights=[2.0, 0.5]),
        "non_tensor_batch": {"a": given["part_a"].numpy(), "b": given["part_b"].numpy()},
        "batch": {
            "prompts": torch.zeros(len(mask), 1),
            "attention_mask": torch.cat([torch.ones(len(mask), 1), mask], 1).long(),
        },
    }
    gamma = Config(gamma=0.9)
    outcome = "compute_{}_outcome_advantage"
    calls = {
        "gae": (
            "compute_gae_advantage_return",
            sums | {"values": given["values"], "gamma": 0.9, "lam": 0.8},
        ),
        "grpo": (outcome.format("grpo"), grouped),
        "grpo_none": (outcome.format("grpo"), grouped | {"norm_adv_by_std_in_grpo": False}),
        "grpo_vectorized": (outcome.format("grpo_vectorized"), grouped),
        "grpo_passk": (outcome.format("grpo_passk"), grouped | {"config": Config()}),
        "gdpo": (outcome.format("gdpo"), grouped | parts),
        "reinforce_plus_plus_baseline": (outcome.format("reinforce_plus_plus_baseline"), grouped),
        "rloo": (outcome.format("rloo"), grouped),
        "rloo_vectorized": (outcome.format("rloo_vectorized"), grouped),
        "opo": (outcome.format("opo"), grouped),
        "reinforce_plus_plus": (outcome.format("reinforce_plus_plus"), sums | {"config": gamma}),
        "remax": (outcome.format("remax"), sums | {"reward_baselines": given["greedy"]}),
        "gpg": (outcome.format("gpg"), grouped),
        "optimal_token_baseline": ("compute_optimal_token_baseline_advantage", baseline),
        "tir_optimal_token_baseline": (
            "compute_multi_turn_optimal_token_baseline_advantage",
            baseline,
        ),
    }
    return {name: getattr(core, f)(**words) for name, (f, words) in calls.items()}


CLIPS = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
NARROW = {"clip_ratio": 3e-4, "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
LOSSES = {
    "vanilla": CLIPS | {"clip_ratio_c": 3.0},
    "gspo": NARROW,
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
    "gpg": {},
    "geo_mean": {"clip_ratio": 0.4, "clip_ratio_low": 0.4, "clip_ratio_high": 0.4},
    "cispo": CLIPS,
    "dppo_tv": {"clip_ratio": 0.15, "clip_ratio_c": 3.0},
    "dppo_kl": {"clip_ratio": 0.05, "clip_ratio_c": 3.0},
    "dro": {"policy_loss": Config(dro_beta=0.5)},
}


def losses(core, given, weights=None):
    """Verl's loss by name, its gradient by the log-probs, and its metrics.

    Args:
        core: verl's module.
        given: arrays.
        weights: of tokens, by which a correction multiplies; None has none.
    """
    by_loss = {}
    for name, settings in LOSSES.items():
        new = given["new"].clone().requires_grad_()
        config = Config(settings, global_batch_info={})
        mode = {"gspo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean"}
        value, metrics = core.get_policy_loss_fn(name)(
            old_log_prob=given["old"],
            log_prob=new,
            advantages=given["advantages"],
            response_mask=given["mask"],
            loss_agg_mode=mode.get(name, "token-mean"),
            config=config,
            rollout_is_weights=weights,
        )
        value.backward()
        by_loss[name] = [value.detach(), new.grad, metrics]
    return by_loss


def others(core, given):
    """Aggregations, the critic's loss, KL estimators, penalised rewards, a KL controller."""
    mask, old, new = given["mask"], given["old"], given["new"]
    by_name = {}
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        by_name[f"agg_{mode}"] = core.agg_loss(given["advantages"], mask, mode)
    by_name["agg_seq-mean-token-sum-norm"] = core.agg_loss(
        given["advantages"], mask, "seq-mean-token-sum-norm", loss_scale_factor=7.0
    )
    by_name["value_loss"] = core.compute_value_loss(
        vpreds=given["advantages"],
        returns=given["rewards"],
        values=given["values"],
        response_mask=mask,
        cliprange_value=0.5,
    )
    for kind in ("k1", "abs", "k2", "k3"):
        by_name[f"kl_{kind}"] = core.kl_penalty_forward(new, old, kind)
    for kind in ("k1", "k1+", "abs", "k2", "k3", "k3+"):
        moved = new.clone().requires_grad_()
        value = core.kl_penalty(moved, old, kind)
        value.sum().backward()
        by_name[f"kl_penalty_{kind}"] = [value.detach(), moved.grad]
    clips = {"cliprange_low": 0.2, "cliprange_high": 0.28}
    by_name["policy_loss"] = core.compute_policy_loss(old, new, given["advantages"], mask, **clips)
    by_name["rewards"] = core.compute_rewards(given["rewards"], old, new, 0.3)
    controller = core.get_kl_controller(
        Config(type="adaptive", kl_coef=0.2, target_kl=0.1, horizon=1000)
    )
    by_name["kl_coefficients"] = []
    for kl in DIVERGENCES:
        controller.update(kl, 64)
        by_name["kl_coefficients"].append(float(controller.value))
    return by_name


CORRECTIONS = {
    "token": {"rollout_is": "token", "rollout_is_threshold": 2.0},
    "sequence": {"rollout_is": "sequence", "rollout_is_threshold": 5.0},
    "token_normalised": {
        "rollout_is": "token",
        "rollout_is_threshold": 2.0,
        "rollout_is_batch_normalize": True,
    },
    "sequence_normalised": {
        "rollout_is": "sequence",
        "rollout_is_threshold": 5.0,
        "rollout_is_batch_normalize": True,
    },
    "icepop": {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"},
}
REJECTIONS = {"seq_sum_k1": "0.2_5.0", "seq_mean_k1": "0.7_1.3"}
FAR_REJECTIONS = {"seq_sum_k1": "0.2_1e10", "seq_mean_k1": "0.7_150"}
"""Between what a token counts at most, and what it would count."""


def corrections(helper, given):
    """Weights, masks and metrics."""
    mask, log_ratio = given["mask"], given["new"] - given["old"]
    by_name = {}
    for name, words in CORRECTIONS.items():
        weights = helper.compute_rollout_correction_weights(log_ratio, mask, **words)[0]
        by_name[f"weights_{name}"] = weights
    for name, threshold in REJECTIONS.items():
        by_name[f"mask_{name}"] = helper.compute_rollout_rejection_mask(
            log_ratio, mask, name, threshold
        )[0]
    for name, threshold in FAR_REJECTIONS.items():
        by_name[f"mask_far_{name}"] = helper.compute_rollout_rejection_mask(
            far(given) - given["old"], mask, name, threshold
        )[0]
    by_name["metrics"] = helper.compute_offpolicy_metrics(given["new"], given["old"], mask)
    by_name["metrics_far"] = helper.compute_offpolicy_metrics(far(given), given["old"], mask)
    return by_name


def functions(*modules):
    """Names of their public functions."""
    return [
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


def plain(value):
    """Tensors as lists of numbers to the last bit."""
    if isinstance(value, torch.Tensor):
        return value.double().tolist()
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    assert is_plain(value), value
    return value


def main(root: Path) -> None:
    core, helper = load(root)
    given = arrays()
    recorded = {
        "advantages": advantages(core, given),
        "losses": losses(core, given),
        "weighted_losses": losses(core, given, given["weights"]),
        "others": others(core, given),
        "corrections": corrections(helper, given),
        "functions": functions(core, helper),
    }
    text = json.dumps({"version": "0.9.1", **plain(recorded)})
    Path(__file__).with_name("verl.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
