"""works: a step on one prompt."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import ActorModel, CriticModel, PPOTrainer

model_name = "tiny"
tokenizer = AutoTokenizer.from_pretrained(model_name)
actor = ActorModel(AutoModelForCausalLM.from_pretrained(model_name))
critic = CriticModel(AutoModelForCausalLM.from_pretrained(model_name))
trainer = PPOTrainer(
    actor_model=actor,
    critic_model=critic,
    tokenizer=tokenizer,
    config={"batch_size": 4, "rollout_batch_size": 8, "kl_coef": 0.1, "lr": 1e-6},
)
prompt = "Explain quantum computing in simple terms."
input_ids = tokenizer.encode(prompt, return_tensors="pt")
output = trainer.step(input_ids)
print("step done, loss:", output["loss"])

# What it shows.
assert trainer.global_step == 1 and output["actor/lr"] == 1e-6
assert abs(output["loss"]) < 1e-3 and "critic/vf_loss" in output  # the ratio is 1 at first
