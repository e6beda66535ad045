"""changed: rows of several lengths need a collate_fn, as with any sampler of torch."""

import random

from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorWithPadding

from verl_hpc.utils.batching import DynamicBatchSampler

draw = random.Random(0)
dataset = [{"input_ids": [5] * draw.randint(5, 900)} for _ in range(50)]
sampler = DynamicBatchSampler(dataset, max_tokens_per_batch=4096)
collate = DataCollatorWithPadding(AutoTokenizer.from_pretrained("tiny"))
dataloader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)

# What it shows.
batches = [batch["input_ids"] for batch in dataloader]
assert sum(map(len, batches)) == 50 and all(batch.numel() <= 4096 for batch in batches)
assert sum(len(row["input_ids"]) for row in dataset) > 0.8 * sum(b.numel() for b in batches)
