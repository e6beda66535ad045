"""Count the metrics of all steps, and the tensors of checkpoints, that are not the same bits."""

import json
import sys
from pathlib import Path

import h5py

from verl_hpc.metrics.log import read_metrics

OUT = Path(sys.argv[1])
OF_TIME = ("time", "timing_s/", "cpu_s/", "energy_j/", "perf/", "reshard/seconds")


def metrics(name):
    """Return the values of all steps of a run that do not depend on time."""
    return {
        (row["step"], key): value
        for row in read_metrics(OUT / name)
        for key, value in row.items()
        if not key.startswith(OF_TIME)
    }


def tensors(name):
    """Return the bytes of all tensors of a run's last checkpoint."""
    kept = {}

    def keep(key, item):
        if isinstance(item, h5py.Dataset) and not key.startswith("regions/"):
            kept[key] = item[...].tobytes()

    with h5py.File(OUT / name / "checkpoints/latest/index.h5") as index:
        index.visititems(keep)
    return kept


def differing(one, other):
    """Count the keys that only one has, or whose values differ."""
    return sum(one.get(key) != other.get(key) for key in one.keys() | other.keys())


first = metrics("first"), tensors("first")
assert len(first[0]) > 100 and len(first[1]) > 10, (len(first[0]), len(first[1]))
values = {}
for name, suffix in (("second", ""), ("other_seed", " with another seed")):
    values[f"metrics that differ{suffix}"] = differing(first[0], metrics(name))
    label = "tensors that differ" if suffix else "tensors of the last checkpoint that differ"
    values[f"{label}{suffix}"] = differing(first[1], tensors(name))
curves = {
    "Reward": {
        name: [(row["step"], row["critic/score/mean"]) for row in read_metrics(OUT / name)]
        for name in ("first", "second", "other_seed")
    }
}
print(json.dumps({"values": values, "curves": curves}))
