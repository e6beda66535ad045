"""refused: GPUs of each role, which are placement of a run."""
# says: strategy is no argument of it; .*get_actor_critic.*placement of a run

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import PPOTrainer

strategy = {
    "actor": {"gpu_ids": [0, 1], "parallel": "tensor"},
    "critic": {"gpu_ids": [2], "parallel": "data"},
    "reward": {"gpu_ids": [3], "parallel": "data"},
}
model = AutoModelForCausalLM.from_pretrained("tiny")
PPOTrainer(model, model, AutoTokenizer.from_pretrained("tiny"), strategy=strategy)
