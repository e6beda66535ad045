"""Run TRL's DPOTrainer on the pairs that ours learns from, and keep what it logs.

usage: python trl_dpo.py OUT
"""

import json

import torch
from trl_runs import OUT, SETTINGS, train  # first: it makes TRL's packages importable

from datasets import Dataset  # isort: skip
from transformers import AutoModelForCausalLM, AutoTokenizer  # isort: skip
from trl import DPOConfig, DPOTrainer  # isort: skip

lines = (OUT / "data/pairs.jsonl").read_text().splitlines()
trainer = DPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(OUT / "model", dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained(OUT / "model"),
    train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
    args=DPOConfig(
        max_steps=8,
        per_device_train_batch_size=16,
        beta=0.1,
        train_sampling_strategy="sequential",
        **SETTINGS,
    ),
)
train(trainer, "dpo")
