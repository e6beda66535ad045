"""works: a flow of three functions."""

from verl_hpc import DataFlow, Operator


def generate_responses():
    return ["a", "bb"]


def compute_rewards(responses):
    return [len(response) for response in responses]


def apply_policy_gradient(rewards):
    return {"loss": -sum(rewards)}


flow = DataFlow()
flow.add_operator(Operator(name="rollout", func=generate_responses))
flow.add_operator(Operator(name="reward", func=compute_rewards))
flow.add_operator(Operator(name="update", func=apply_policy_gradient))
pipeline = flow.compile()
values = pipeline.run()

# What it shows.
assert values == {"rollout": ["a", "bb"], "reward": [1, 2], "update": {"loss": -3}}
