"""What both runs of TRL share: where things are, its packages, its settings, and what is kept."""

import json
import sys
from pathlib import Path

OUT = Path(sys.argv[1])
sys.path.insert(0, str(OUT / "packages"))
SETTINGS = {
    "output_dir": str(OUT / "trl"),
    "use_cpu": True,
    "bf16": False,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "adam_beta2": 0.999,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 0,
}


def train(trainer, name):
    """Train, and keep what the trainer logs of each step."""
    trainer.train()
    logged = [row for row in trainer.state.log_history if "grad_norm" in row]
    (OUT / f"trl_{name}.json").write_text(json.dumps(logged))
