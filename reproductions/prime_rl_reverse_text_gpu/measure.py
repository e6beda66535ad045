"""Print the mean reward of the last step."""

import json
import sys
from pathlib import Path

from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import points

rewards = points(read_metrics(Path(sys.argv[1]) / "run"), "critic/score/mean")
values = {"reward of the last step": rewards[-1][1]}
print(json.dumps({"values": values, "curves": {"Reward": {"ours": rewards}}}))
