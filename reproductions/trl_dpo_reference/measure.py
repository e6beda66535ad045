"""Print how far losses and gradient norms are from TRL's, which references.json holds."""

import json
import sys
from pathlib import Path

from verl_hpc.metrics.log import read_metrics

rows = [row for row in read_metrics(Path(sys.argv[1]) / "run") if "actor/grad_norm" in row]
theirs = json.loads(Path(__file__).with_name("references.json").read_text())
values, curves = {}, {}
for place, (metric, label) in enumerate(
    [("preference/loss", "a loss"), ("actor/grad_norm", "a gradient norm")]
):
    pairs = [(row[metric], other[place]) for row, other in zip(rows, theirs, strict=True)]
    values[f"largest difference of {label}"] = max(abs(a - b) for a, b in pairs)
    curves[label] = {
        who: list(enumerate(line, start=1))
        for who, line in zip(("ours", "TRL"), zip(*pairs, strict=True), strict=True)
    }
print(json.dumps({"values": values, "curves": curves}))
