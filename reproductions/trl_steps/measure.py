"""Print how far each of our steps is from TRL's: the largest difference, relative to the mean."""

import json
import sys
from pathlib import Path
from statistics import fmean

from verl_hpc.metrics.log import read_metrics

OUT = Path(sys.argv[1])


def by_step(logged, name, epochs):
    """Return the means of a figure that TRL logs over the optimizer steps of each step."""
    values = [row[name] for row in logged]
    return [fmean(values[i : i + epochs]) for i in range(0, len(values), epochs)]


FIGURES = (
    ("grpo", "loss", "actor/loss", "loss", 2),
    ("grpo", "gradient norm", "actor/grad_norm", "grad_norm", 2),
    ("grpo", "KL to the reference", "actor/kl_loss", "kl", 2),
    ("dpo", "loss", "preference/loss", "loss", 1),
    ("dpo", "gradient norm", "actor/grad_norm", "grad_norm", 1),
)
values, curves = {}, {}
for run, label, metric, name, epochs in FIGURES:
    rows = [row for row in read_metrics(OUT / run) if "actor/grad_norm" in row]
    ours = [row[metric] for row in rows]
    theirs = by_step(json.loads((OUT / f"trl_{run}.json").read_text()), name, epochs)
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    values[f"{run}: {label}, relative difference"] = max(gaps) / fmean(map(abs, theirs))
    curves[f"{run}: {label}"] = {
        who: list(enumerate(points, start=1)) for who, points in (("TRL", theirs), ("ours", ours))
    }
clipped = max(row["actor/pg_clipfrac"] for row in read_metrics(OUT / "grpo"))
values["grpo: largest share of clipped tokens"] = clipped
print(json.dumps({"values": values, "curves": curves}))
