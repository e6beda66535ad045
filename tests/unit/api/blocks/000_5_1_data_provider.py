"""works: Parquet files of a directory of an object store, which workers read ahead."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import DataProvider, PPOTrainer

data_provider = DataProvider(
    data_path="memory://your-bucket/rlhf-dataset/",
    file_format="parquet",
    prefetch_factor=4,
    num_workers=8,
)
trainer = PPOTrainer(
    AutoModelForCausalLM.from_pretrained("tiny"),
    None,
    AutoTokenizer.from_pretrained("tiny"),
    {"max_response_length": 2, "rollout_batch_size": 4},
    reward_fn="exact_match",
    data_provider=data_provider,
)

# What it shows.
assert len(data_provider) == 64 and len(trainer.train(num_steps=2)) == 2
assert data_provider.state_dict() == {"epoch": 0, "offset": 8}
for path in ("rlhf-dataset/", "rlhf-dataset/part-*.parquet", "memory://your-bucket/*/*-1.parquet"):
    assert len(DataProvider(path, "parquet")) == (32 if "-1" in path else 64)
data_provider.close()
