"""Print how far log-probs of the engines are apart, and what each run gains in accuracy."""

import json
import sys
from pathlib import Path
from statistics import fmean

from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import points

OUT = Path(sys.argv[1])
DIFFERENCE = "training/rollout_log_probs_diff_mean"
rows = {name: read_metrics(OUT / name) for name in ("exact", "plain", "replay")}
accuracy = {name: points(of, "val/accuracy") for name, of in rows.items()}
# All runs start from the same weights, whose accuracy is that without the perturbation.
start = accuracy["exact"][0][1]
gained = {name: curve[-1][1] - start for name, curve in accuracy.items()}
values = {"exact: accuracy gained": gained["exact"]}
for name in ("plain", "replay"):
    apart = fmean(value for _, value in points(rows[name], DIFFERENCE))
    values[f"{name}: mean log-prob difference"] = apart
    values[f"{name}: accuracy gained, of the exact run's"] = gained[name] / gained["exact"]
curves = {
    "Accuracy": accuracy,
    "Reward": {name: points(of, "critic/score/mean") for name, of in rows.items()},
    "Log-prob difference": {name: points(of, DIFFERENCE) for name, of in rows.items()},
}
print(json.dumps({"values": values, "curves": curves}))
