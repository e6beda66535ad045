"""Print mean losses at the start and at the end."""

import json
import sys
from pathlib import Path
from statistics import fmean

from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import points

losses = points(read_metrics(Path(sys.argv[1]) / "run"), "sft/loss")
values = {
    f"mean loss of steps {first} to {last}": fmean(y for x, y in losses if first <= x <= last)
    for first, last in ((1, 4), (13, 16))
}
print(json.dumps({"values": values, "curves": {"Loss": {"ours": losses}}}))
