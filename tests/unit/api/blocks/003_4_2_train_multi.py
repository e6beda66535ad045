"""refused: a trainer of several tasks in one process; a run has tasks."""
# says: cannot import|no attribute 'Trainer': several tasks.*docs/tasks.md

from verl_hpc.data import get_dataloader
from verl_hpc.models import get_actor_critic

actor, critic = get_actor_critic(
    model_name="tiny", use_vllm=False, device_map={"actor": "cpu", "critic": "cpu"}
)
train_dataloader = get_dataloader(
    dataset_path="data/multi_task.jsonl",
    task_weights={"preference_alignment": 0.5, "code_generation": 0.3, "fact_checking": 0.2},
    batch_size=8,
)
batch = next(iter(train_dataloader))
assert len(batch) == 8 and {row.extra["task"] for row in batch} <= train_dataloader.weights.keys()

from verl_hpc import Trainer  # noqa: E402

trainer = Trainer(actor=actor, critic=critic, dataloader=train_dataloader, config_path="tasks.yaml")
