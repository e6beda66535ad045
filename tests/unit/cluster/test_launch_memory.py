"""The runs of dense models that launch/ starts fit their GPUs, and fill their pipelines: a ledger.

Every part is counted for the fullest rank. What a decoder layer keeps of a token for the backward
pass follows Korthikanti et al., "Reducing activation recomputation in large transformer models"
(2022), section 4, for RMSNorm, SwiGLU, grouped queries and an attention that keeps no scores.
"""

import re

import pytest

from tests.unit.cluster.requests import ROOT
from tests.unit.cluster.test_launch_configs import num_ranks, sizes_of
from verl_hpc.config.load import load_config
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.pipeline import layers_per_stage
from verl_hpc.placement.layouts import run_layouts

GB = 1e9
USABLE = {80: 84.9 * GB, 141: 150 * GB}
"""What the driver leaves of a GPU that is sold as so many GB (79.1 GiB of an H100)."""
OTHER = 6 * GB
"""CUDA's context, NCCL's buffers, workspaces, and holes between blocks; estimated."""
MARGIN = 5 * GB
WIDENED = 3 * 4 * 67_108_864
"""Logits that log-probs widen to float32 at a time, and what is computed of them."""
# Whole dense models, and the tokens of a prompt and its response on average; assumed.
DENSE = {"ppo_70b": 970, "grpo_8b": 600, "grpo_32b_fp8": 1200, "sft_8b": 1000}


class Ledger:
    """Bytes on the fullest rank of a run, by what they are for."""

    def __init__(self, name, config=None):
        self.text = (ROOT / f"configs/run/{name}.yaml").read_text()
        self.config = config or load_config(ROOT / f"configs/run/{name}.yaml")
        self.arch = read_architecture(sizes_of(name))
        self.train = run_layouts(self.config, self.arch, num_ranks(name)).train["actor"]
        self.num_engines = 1 + ("critic" in self.config.role_settings)
        (size,) = re.findall(r"GPUs of (\d+)\s+(?:#\s+)?GB", self.text)
        self.usable = USABLE[int(size)]
        rollout = self.config.rollout
        self.longest = rollout.max_prompt_tokens + rollout.max_response_tokens
        # A sequence above the budget gets its own micro-batch.
        self.tokens = max(self.config.batch.max_tokens_per_micro_batch, self.longest)

    @property
    def layer_parameters(self):
        a = self.arch
        attention = a.hidden_size * a.head_size * 2 * (a.num_heads + a.num_kv_heads)
        return attention + 3 * a.hidden_size * a.ffn_size

    def stage_parameters(self, stage):
        """Parameters of a rank of a pipeline stage, without biases and norms, which are few."""
        (layers,) = layers_per_stage(self.arch.num_layers, self.train.pp)
        vocabulary = self.arch.vocab_size * self.arch.hidden_size
        ends = (stage == 0) + (stage == self.train.pp - 1)
        return (layers[stage] * self.layer_parameters + ends * vocabulary) / self.train.tp

    def part(self, what, stage):
        fp8_copies = 2 if self.config.model.fp8 else 0
        optimizer = 12 / self.train.dp  # two moments and the master weights
        bytes_each = {"parameters": 2 + fp8_copies, "gradients": 4, "optimizer": optimizer}
        return bytes_each[what] * self.stage_parameters(stage) * self.num_engines

    def state(self, stage):
        return sum(self.part(what, stage) for what in ("parameters", "gradients", "optimizer"))

    def layer_activations(self):
        """Bytes that a layer keeps of a token."""
        a, recompute = self.arch, self.config.parallel.recompute
        shared = self.train.tp if self.config.parallel.sequence_parallel else 1
        if recompute == "full":
            return 2 * a.hidden_size / shared
        assert recompute == "none"
        norms = 8 * a.hidden_size / shared
        queries_keys_values = 2 * a.head_size * (2 * a.num_heads + 3 * a.num_kv_heads)
        attention = queries_keys_values + 2 * a.head_size * a.num_heads
        return norms + (attention + 6 * a.ffn_size) / self.train.tp

    def activations(self, stage):
        (layers,) = layers_per_stage(self.arch.num_layers, self.train.pp)
        in_flight = self.train.pp - stage
        kept = self.layer_activations() * layers[stage] * self.tokens * in_flight
        if stage < self.train.pp - 1:
            return kept
        return kept + 4 * self.tokens * self.arch.vocab_size / self.train.tp + WIDENED

    def training(self, stage):
        return self.state(stage) + self.activations(stage) + OTHER

    def generating(self, stage):
        stays = ("parameters", "gradients", "optimizer")
        stays = [what for what in stays if not getattr(self.config.offload, what)]
        share = self.config.rollout.gpu_memory_utilization * self.usable
        return sum(self.part(what, stage) for what in stays) + share + OTHER

    def rollout_weights(self):
        ends = 1 if self.arch.tied_embeddings else 2
        vocabulary = self.arch.vocab_size * self.arch.hidden_size
        everything = self.arch.num_layers * self.layer_parameters + ends * vocabulary
        return 2 * everything / self.config.rollout.tensor_parallel

    def resharding(self, stage):
        """Everything of the trainer, and the rollout engine's weights."""
        return self.state(stage) + self.rollout_weights() + OTHER

    def cache(self):
        """Bytes for keys and values after the weights, if activations take half of the rest."""
        share = self.config.rollout.gpu_memory_utilization * self.usable
        return (share - self.rollout_weights()) / 2

    def token_cache(self):
        kv_heads = max(self.arch.num_kv_heads / self.config.rollout.tensor_parallel, 1)
        return 2 * 2 * self.arch.num_layers * kv_heads * self.arch.head_size


def worst(ledger):
    """GB of the fullest stage in each phase."""
    phases = [ledger.training]
    if ledger.config.recipe != "sft":
        phases += [ledger.generating, ledger.resharding]
    return {p.__name__: max(map(p, range(ledger.train.pp))) / GB for p in phases}


@pytest.mark.parametrize("name", DENSE)
def test_every_phase_fits_the_gpus_of_the_header(name):
    ledger = Ledger(name)
    for phase, used in worst(ledger).items():
        assert used * GB <= ledger.usable - MARGIN, phase


@pytest.mark.parametrize("name", [n for n in DENSE if n != "sft_8b"])
def test_the_cache_holds_thirty_two_of_the_longest_sequences(name):
    ledger = Ledger(name)
    assert ledger.cache() >= 32 * ledger.longest * ledger.token_cache()


@pytest.mark.parametrize("name", DENSE)
def test_an_optimizer_step_has_enough_micro_batches_for_the_pipeline(name):
    """1F1B with m micro-batches on p stages is busy m / (m + p - 1) of the time."""
    ledger = Ledger(name)
    config, train = ledger.config, ledger.train
    samples = config.batch.size * (1 if config.recipe == "sft" else config.rollout.num_samples)
    sequences = samples // (config.batch.mini_batches * train.dp)
    tokens = sequences * DENSE[name]
    assert -(-tokens // config.batch.max_tokens_per_micro_batch) >= 2 * train.pp
    assert config.parallel.recompute == "none", "nothing is recomputed that fits"


def test_the_ledger_finds_what_does_not_fit():
    """16,384 tokens at a time of the 32B model were out of memory by far."""
    config = load_config(ROOT / "configs/run/grpo_32b_fp8.yaml")
    batch = config.batch.model_copy(update={"max_tokens_per_micro_batch": 16384})
    ledger = Ledger("grpo_32b_fp8", config.model_copy(update={"batch": batch}))
    assert worst(ledger)["training"] > ledger.usable / GB + 20
