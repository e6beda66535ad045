"""Names of the metrics that views and reports look for; verl's spelling where it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCORE = "critic/score/mean"
"""Mean score as the scorer gave it."""
REWARD = "critic/rewards/mean"
"""Mean reward from which advantages are computed: the score after a KL penalty, if there is one."""
VALIDATION = "val/score/mean"
"""Mean score of an evaluation; val/accuracy is the share of its answers that are right."""
RIGHT = 1.0
"""Least score of a right answer: some rewards give part of a point for nearly right ones."""
SFT_LOSS = "sft/loss"
PAIR_LOSS = "reward/loss"
"""Loss of a reward model that learns from pairs."""
PAIR_ACCURACY = "reward/accuracy"
"""Share of a step's pairs in which the reward model prefers the chosen answer, before the
update."""
PREFERENCE_LOSS = "preference/loss"
"""Loss of a policy that learns from better and worse answers."""
PREFERENCE_ACCURACY = "rewards/accuracies"
"""Share of the pairs of a step whose chosen answer has the higher implicit reward."""
POLICY_LOSS = "actor/pg_loss"
CLIP_FRACTION = "actor/pg_clipfrac"
OLD_POLICY_KL = "actor/ppo_kl"
"""KL to the policy in the denominator of the loss's ratio: the weights before the step, or, with
old_log_probs = rollout, the policy that sampled."""
CORRECTION_WEIGHT = "actor/correction_weight"
CORRECTION_TRUNCATED = "actor/correction_truncated"
"""Mean token weight of algorithm.correction, and the share of tokens whose weight was truncated."""
ROUTER_DISAGREEMENT = "actor/router_disagreement"
"""Share of tokens x layers, with algorithm.router_replay, for which the trainer's router would have
chosen other experts than the rollout."""
REFERENCE_KL = "actor/kl_loss"
REFERENCE_KL_PENALTY = "actor/reward_kl_penalty"
TEACHER_REVERSE_KL = "distillation/reverse_kl"
"""KL from the policy to its teacher, on the tokens that the policy sampled."""
TEACHER_FORWARD_KL = "actor/forward_kl"
"""KL from the teacher to the policy, on the teacher's likeliest tokens and the rest as one."""
ENTROPY = "actor/entropy"
GRAD_NORM = "actor/grad_norm"
LEARNING_RATE = "actor/lr"
VALUE_LOSS = "critic/vf_loss"
VALUE_CLIP_FRACTION = "critic/vf_clipfrac"
VALUE_EXPLAINED_VARIANCE = "critic/vf_explained_var"
VALUE_GRAD_NORM = "critic/grad_norm"
RESPONSE_LENGTH = "response_length/mean"
RESPONSE_LENGTH_MAX = "response_length/max"
RESPONSES_CUT = "response_length/clip_ratio"
LOG_PROBS_DIFFERENCE = "training/rollout_log_probs_diff_mean"
"""Difference that rollout.verify checks; verl's rollout_probs_diff is that of probabilities."""

LAG, LAG_MAX = "rollout/lag/mean", "rollout/lag/max"
"""Number of steps by which a token's weights are older than those that train on it."""

THROUGHPUT = "perf/throughput"
"""Tokens a second and rank, as in verl."""
TOKENS = "perf/total_num_tokens"

GPU_MEMORY_USED = "perf/gpu_memory_used_gb"
"""GiB in use on a rank's GPU at the end of a step, by all processes."""

RESHARD_RECEIVED = "reshard/received_bytes"
"""Bytes received from other ranks in a step, summed over ranks."""
RESHARD_MINIMUM = "reshard/minimum_bytes"
"""Least possible bytes: those that ranks needed and did not hold."""
RESHARD_SECONDS = "reshard/seconds"

TASK = "task/"
"""Prefix of a task's name, and of the metrics of its steps: `task/NAME/critic/score/mean`."""
SET = "set/"
"""Prefix of the name of a set of a mix, and of its metrics: `set/NAME/critic/score/mean`."""
TIMING = "timing_s/"
"""Prefix of seconds by operator."""
STEP_SECONDS = "timing_s/step"
CPU = "cpu_s/"
"""Prefix of CPU seconds by operator, of all threads of the rank's process; names as with
`timing_s/`. Waiting for other ranks takes almost none, so they measure the rank's own work."""
ENERGY = "energy_j/"
"""Prefix of joules that all ranks' meters counted, by meter and operator: `energy_j/nvml/rollout`.
They are sums over ranks, and absent if no meter can be read."""
WAIT = "wait"
"""Stage of a rank that waits for the others at the end of a step, in split runs only."""
OVERLAP = "longest of all ranks; they overlap"
"""Meaning of seconds by operator in split runs."""

STATUS: Mapping[str, str] = {
    SCORE: "reward",
    VALIDATION: "val score",
    SFT_LOSS: "loss",
    PAIR_LOSS: "loss",
    PAIR_ACCURACY: "accuracy",
    PREFERENCE_LOSS: "loss",
    PREFERENCE_ACCURACY: "accuracy",
    REFERENCE_KL: "kl",
    REFERENCE_KL_PENALTY: "kl",
    TEACHER_REVERSE_KL: "teacher kl",
    OLD_POLICY_KL: "ppo_kl",
}
"""The most important metrics of a run, with short labels."""
SUMMARY: Mapping[str, str] = {
    **STATUS,
    ENTROPY: "entropy",
    RESPONSE_LENGTH: "length",
    GRAD_NORM: "grad",
    THROUGHPUT: "tok/s/rank",
}
"""The most important metrics of a step, with short labels."""


@dataclass(frozen=True)
class Chart:
    """Curves that share a pair of axes, each a metric and its label."""

    title: str
    curves: Mapping[str, str]
    unit: str = ""
    """Unit of the vertical axis."""
    least: float | None = None
    """Least value of the vertical axis; points beyond are drawn at its end."""
    most: float | None = None

    @property
    def limits(self) -> tuple[float | None, float | None]:
        return self.least, self.most


CHARTS = (
    Chart("Reward", {SCORE: "score", REWARD: "after KL penalty"}),
    Chart("Evaluation score", {VALIDATION: "mean"}),
    Chart("SFT loss", {SFT_LOSS: "loss"}),
    Chart("Loss of pairs", {PAIR_LOSS: "loss"}, least=0.0),
    Chart("Preference loss", {PREFERENCE_LOSS: "loss"}),
    Chart(
        "Accuracy on pairs",
        {PAIR_ACCURACY: "of scores", PREFERENCE_ACCURACY: "of implicit rewards"},
        least=0.0,
        most=1.0,
    ),
    Chart(
        "KL to the reference policy",
        {REFERENCE_KL: "in the loss", REFERENCE_KL_PENALTY: "in the reward"},
        unit="nats/token",
    ),
    Chart(
        "KL between policy and teacher",
        {TEACHER_REVERSE_KL: "reverse", TEACHER_FORWARD_KL: "forward"},
        unit="nats/token",
    ),
    Chart("KL to the policy before the update", {OLD_POLICY_KL: "KL"}, unit="nats/token"),
    Chart("Entropy", {ENTROPY: "actor"}, unit="nats/token", least=0.0),
    Chart(
        "Response length",
        {RESPONSE_LENGTH: "mean", RESPONSE_LENGTH_MAX: "longest"},
        unit="tokens",
        least=0.0,
    ),
    Chart("Share of responses cut", {RESPONSES_CUT: "share"}, least=0.0, most=1.0),
    Chart("Policy loss", {POLICY_LOSS: "actor"}),
    Chart("Value loss", {VALUE_LOSS: "critic"}),
    Chart("Gradient norm", {GRAD_NORM: "actor", VALUE_GRAD_NORM: "critic"}, least=0.0),
    Chart(
        "Clipped share",
        {CLIP_FRACTION: "policy", VALUE_CLIP_FRACTION: "values"},
        least=0.0,
        most=1.0,
    ),
    Chart(
        "Variance that the values explain",
        {VALUE_EXPLAINED_VARIANCE: "critic"},
        # It has no least: values of a new critic can be worse than none by any factor.
        least=-1.0,
        most=1.0,
    ),
    Chart(
        "Train-rollout log-prob difference",
        {LOG_PROBS_DIFFERENCE: "mean absolute difference"},
        unit="nats",
        least=0.0,
    ),
    Chart(
        "Weights of algorithm.correction",
        {CORRECTION_WEIGHT: "mean", CORRECTION_TRUNCATED: "share truncated"},
        least=0.0,
    ),
    Chart("Tokens that training would route elsewhere", {ROUTER_DISAGREEMENT: "share"}, least=0.0),
    Chart(
        "Steps that responses are behind",
        {LAG: "mean of tokens", LAG_MAX: "largest"},
        unit="steps",
        least=0.0,
    ),
    Chart("Throughput", {THROUGHPUT: "of a rank"}, unit="tokens/s/rank", least=0.0),
    Chart("Learning rate", {LEARNING_RATE: "actor"}, least=0.0),
)
