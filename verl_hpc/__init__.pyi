# What type checkers and editors see of the names that are imported when they are first used.

from verl_hpc.api.data import DataProvider as DataProvider
from verl_hpc.api.data import PromptSource as PromptSource
from verl_hpc.api.dataloader import DynamicBatchSampler as DynamicBatchSampler
from verl_hpc.api.dataloader import get_dataloader as get_dataloader
from verl_hpc.api.flow import DataFlow as DataFlow
from verl_hpc.api.flow import Operator as Operator
from verl_hpc.api.loading import HfModelAdapter as HfModelAdapter
from verl_hpc.api.loading import get_actor_critic as get_actor_critic
from verl_hpc.api.manager import RolloutManager as RolloutManager
from verl_hpc.api.models import ActorModel as ActorModel
from verl_hpc.api.models import CriticModel as CriticModel
from verl_hpc.api.models import DeviceMesh as DeviceMesh
from verl_hpc.api.nodes import ReplayBuffer as ReplayBuffer
from verl_hpc.api.nodes import RewardNode as RewardNode
from verl_hpc.api.nodes import RolloutNode as RolloutNode
from verl_hpc.api.nodes import UpdateNode as UpdateNode
from verl_hpc.api.rewards import register_reward as register_reward
from verl_hpc.api.trainer import PPOTrainer as PPOTrainer
from verl_hpc.api.updater import PPORoleUpdater as PPORoleUpdater
from verl_hpc.api.vllm import VLLMActorModel as VLLMActorModel
from verl_hpc.api.vllm import vLLMActor as vLLMActor
from verl_hpc.api.vllm import vLLMAdapter as vLLMAdapter

__version__: str
