"""changed: breakpoint() stands in the reward itself, which is no remote function of Ray."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import PPOTrainer

stops = []
sys.breakpointhook = lambda: stops.append(sys._getframe(1).f_locals["sampled_response"])


def reward(sampled_response, reference_answer):
    breakpoint()  # noqa: T100
    return 0.0


trainer = PPOTrainer(
    AutoModelForCausalLM.from_pretrained("tiny"),
    None,
    AutoTokenizer.from_pretrained("tiny"),
    {"max_response_length": 2},
    reward_fn=reward,
)
trainer.step(["hi"])

# What it shows.
assert len(stops) == 1
