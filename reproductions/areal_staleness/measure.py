"""Print scores after training with stale responses, relative to those without staleness."""

import json
import sys
from pathlib import Path
from statistics import fmean

from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import points

OUT = Path(sys.argv[1])
STALENESS = (0, 1, 2, 4, 8, 16)


def accuracy(kind, staleness):
    """Return accuracies by step; without staleness both kinds are the same run."""
    name = f"{kind}_{staleness}" if staleness else "naive_0"
    return points(read_metrics(OUT / name), "val/accuracy")


kinds = ("naive", "decoupled")
last = {(kind, s): accuracy(kind, s)[-1][1] for kind in kinds for s in STALENESS}
values = {
    f"{kind} at {s}, share of the score at 0": score / last["naive", 0]
    for (kind, s), score in last.items()
}
gaps = [last["decoupled", s] - last["naive", s] for s in (4, 8)]
values["decoupled above naive, mean of 4 and 8"] = fmean(gaps)
curves = {
    "Accuracy after training, by staleness": {
        kind: [(s, last[kind, s]) for s in STALENESS] for kind in kinds
    }
}
for kind in kinds:
    curves[f"Accuracy over steps, {kind}"] = {str(s): accuracy(kind, s) for s in STALENESS}
print(json.dumps({"values": values, "curves": curves}))
