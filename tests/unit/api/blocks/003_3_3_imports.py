"""works: names where the tutorial imports them from."""

from verl_hpc import HfModelAdapter, RewardNode, RolloutNode, UpdateNode, vLLMAdapter
from verl_hpc.data import get_dataloader
from verl_hpc.metrics import MetricsExporter
from verl_hpc.models import get_actor_critic
from verl_hpc.trainer import PPOTrainer
from verl_hpc.utils.batching import DynamicBatchSampler

# What it shows.
nodes = (RolloutNode, RewardNode, UpdateNode, HfModelAdapter, vLLMAdapter)
others = (get_dataloader, MetricsExporter, get_actor_critic, PPOTrainer, DynamicBatchSampler)
assert all(map(callable, (*nodes, *others)))
