"""Print the last accuracy on GSM8K's test rows of each run, and how far the engines are apart."""

import json
import sys
from pathlib import Path

from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import points

values, curves = {}, {"Accuracy": {}, "Log-prob difference": {}}
for metrics in sorted(Path(sys.argv[1]).glob("*/metrics.jsonl")):
    name, rows = metrics.parent.name, read_metrics(metrics.parent)
    accuracy = points(rows, "val/accuracy")
    apart = points(rows, "training/rollout_log_probs_diff_mean")
    values[f"{name}: test accuracy"] = accuracy[-1][1]
    values[f"{name}: mean log-prob difference, last step"] = apart[-1][1]
    curves["Accuracy"][name], curves["Log-prob difference"][name] = accuracy, apart
print(json.dumps({"values": values, "curves": curves}))
