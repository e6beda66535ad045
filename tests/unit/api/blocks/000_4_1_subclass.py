"""works: an actor of one's own, which makes its model after super().__init__()."""

from transformers import AutoTokenizer, Qwen2ForCausalLM

from verl_hpc import ActorModel, PPOTrainer


class MyActor(ActorModel):
    def __init__(self, model_path):
        super().__init__()
        self.model = Qwen2ForCausalLM.from_pretrained(model_path)
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)

    def forward(self, input_ids, attention_mask=None):
        return self.model(input_ids, attention_mask=attention_mask)

    def generate(self, input_ids, **kwargs):
        return self.model.generate(input_ids, **kwargs)


actor = MyActor("tiny")

# What it shows.
before = actor.model.lm_head.weight.clone()
config = {"max_response_length": 3, "lr": 1e-2, "num_samples": 2}
trainer = PPOTrainer(actor, None, actor.tokenizer, config, reward_fn=lambda r, _: float(len(r)))
trainer.step(["one", "two"])
assert not before.equal(actor.model.lm_head.weight)
