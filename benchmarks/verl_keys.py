"""Make verl_hpc/migration/keys.json of two files of verl's verl/trainer/config.

python -m benchmarks.verl_keys _generated_ppo_trainer.yaml _generated_ppo_megatron_trainer.yaml \\
    COMMIT > verl_hpc/migration/keys.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from verl_hpc.migration.reference import FORMS, leaves


def main(fsdp: str, megatron: str, commit: str) -> None:
    trees = {
        form: dict(leaves(yaml.safe_load(Path(file).read_text(encoding="utf-8"))))
        for form, file in zip(FORMS, (fsdp, megatron), strict=True)
    }
    one, other = trees.values()
    shared = {key: value for key, value in one.items() if other.get(key, ...) == value}
    own = {form: {k: v for k, v in t.items() if k not in shared} for form, t in trees.items()}
    json.dump({"commit": commit, "shared": shared} | own, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
