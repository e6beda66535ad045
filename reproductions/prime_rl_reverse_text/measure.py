"""Print rewards, and the largest KL between the rollout engine and the trainer."""

import json
import sys
from pathlib import Path

from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import points

OUT = Path(sys.argv[1])
rows = read_metrics(OUT / "rl")
rewards, apart = points(rows, "critic/score/mean"), points(rows, "rollout_corr/k3_kl")
values = {
    "reward of the last step": rewards[-1][1],
    "reward gained since the first step": rewards[-1][1] - rewards[0][1],
    "largest mismatch KL of a step": max(value for _, value in apart),
}
curves = {
    "Reward": {"ours": rewards},
    "SFT loss": {"ours": points(read_metrics(OUT / "sft"), "sft/loss")},
}
print(json.dumps({"values": values, "curves": curves}))
