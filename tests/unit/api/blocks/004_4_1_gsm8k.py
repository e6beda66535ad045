"""changed: python -m verl_hpc.data.prepare gsm8k --source DIR --out DIR, in place of a script."""

import json
from pathlib import Path

from pyarrow import parquet

from verl_hpc.data.prepare import main

row = {"question": "What is 1 + 1?", "answer": "1 + 1 = 2\n#### 2"}
Path("raw").mkdir(exist_ok=True)
for split in ("train", "test"):
    Path(f"raw/{split}.jsonl").write_text(json.dumps(row | {"question": f"{split}: 1 + 1?"}))
main(["gsm8k", "--source", "raw", "--out", "data/gsm8k"])

# What it shows.
(written,) = parquet.read_table("data/gsm8k/train.parquet").to_pylist()
assert written["reward_model"]["ground_truth"] == "2" and written["data_source"] == "openai/gsm8k"
