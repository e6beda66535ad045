"""Run TRL's DPOTrainer on the pairs that ours learns from, and keep what it logs.

usage: python trl_dpo.py OUT
"""

import json
import sys
from pathlib import Path

OUT = Path(sys.argv[1])
sys.path.insert(0, str(OUT / "packages"))

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import DPOConfig, DPOTrainer  # noqa: E402

lines = (OUT / "data/pairs.jsonl").read_text().splitlines()
trainer = DPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(OUT / "model", dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained(OUT / "model"),
    train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
    args=DPOConfig(
        output_dir=str(OUT / "trl"),
        use_cpu=True,
        bf16=False,
        max_steps=8,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,
        beta=0.1,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        adam_beta2=0.999,
        weight_decay=0.0,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        train_sampling_strategy="sequential",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    ),
)
trainer.train()
logged = [row for row in trainer.state.log_history if "grad_norm" in row]
(OUT / "trl_dpo.json").write_text(json.dumps(logged))
