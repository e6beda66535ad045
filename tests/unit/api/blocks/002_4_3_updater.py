"""works: the pair of get_actor_critic is updated."""

from transformers import AutoTokenizer

from verl_hpc import PPORoleUpdater, RolloutManager, get_actor_critic

actor_critic = get_actor_critic("tiny")
trainer = PPORoleUpdater(model=actor_critic, engine="hybrid", overlap_comm=True)

# What it shows.
actor, critic = actor_critic
tokenizer = AutoTokenizer.from_pretrained("tiny")
batch = RolloutManager(actor, tokenizer, max_response_length=3).generate(["hi", "ho"])
metrics = trainer.update(batch, [1.0, 0.0])
assert metrics["actor/grad_norm"] > 0 and critic.value_head.weight.abs().max() > 0
