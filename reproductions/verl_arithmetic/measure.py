"""Print the best mean reward of a step, and the scores on the test rows."""

import json
import sys
from pathlib import Path

from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import points

rows = read_metrics(Path(sys.argv[1]) / "one_rank")
rewards, test = points(rows, "critic/rewards/mean"), points(rows, "val/score/mean")
values = {
    "best mean reward of a step": max(value for _, value in rewards),
    "test rows before training": test[0][1],
    "test rows after training": test[-1][1],
}
curves = {"Mean reward": {"training": rewards, "greedy answers to the test rows": test}}
print(json.dumps({"values": values, "curves": curves}))
