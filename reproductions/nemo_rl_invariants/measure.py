"""Print the largest value of each invariant over the steps of every recipe."""

import json
import math
import sys
from pathlib import Path

from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import points

KL, LARGEST = "rollout_corr/k3_kl", "training/rollout_log_probs_diff_max"
BEYOND = "actor/clamped_ratios_beyond"
values, curves = {}, {"gen_kl_error": {}, "Ratios beyond 0.79 to 1.21, not clamped": {}}
for metrics in sorted(Path(sys.argv[1]).glob("*/metrics.jsonl")):
    name, rows = metrics.parent.name, read_metrics(metrics.parent)
    values[f"{name}: gen_kl_error"] = max(value for _, value in points(rows, KL))
    largest = max(value for _, value in points(rows, LARGEST))
    values[f"{name}: token_mult_prob_error"] = math.exp(largest)
    if beyond := points(rows, BEYOND):
        values[f"{name}: clamped ratios beyond"] = max(value for _, value in beyond)
    curves["gen_kl_error"][name] = points(rows, KL)
    if plain := points(rows, "actor/unclamped_ratios_beyond"):
        curves["Ratios beyond 0.79 to 1.21, not clamped"][name] = plain
print(json.dumps({"values": values, "curves": curves}))
