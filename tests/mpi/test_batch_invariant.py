"""rollout.batch_invariant: rollout and training give the same log-probs, bit for bit."""

from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

from tests.generated import generated
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import build_engine, loaded_rollout, rollout_of
from tests.mpi.recipe_runs import BATCH, ROLLOUT, run, write_reward
from tests.slow import all_slow
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.rollout.factory import invariant_attention
from verl_hpc.rollout.protocol import Sampling

pytestmark = pytest.mark.world(1, 2, 4)
LIMITS = RolloutConfig(
    max_prompt_tokens=32,
    max_response_tokens=64,
    max_num_seqs=16,
    kv_cache_gib=0.03,
    batch_invariant=True,
)
OTHER = LIMITS.model_copy(update={"batch_invariant": False})
LAYOUTS = {
    1: [TrainLayout()],
    2: [TrainLayout(tp=2), TrainLayout(pp=2), TrainLayout(dp=2)],
    4: [TrainLayout(tp=2, pp=2), TrainLayout(tp=2, dp=2)],
}
"""Six layouts in all; --slow takes 450,000 tokens on each, 2.7 million together."""


@pytest.mark.timeout(3600)  # of 2.7 million tokens
@pytest.mark.parametrize(
    "family, num_calls, num_prompts",
    [("qwen3", 1, 40), *all_slow(("qwen2", 1, 40), ("llama", 1, 40), ("qwen3", 15, 400))],
)
def test_no_bit_of_a_log_prob_differs(here, tiny_model, family, num_calls, num_prompts):
    directory = tiny_model(family, True, num_hidden_layers=4, **VLLM_HEADS)
    random = torch.Generator().manual_seed(here.world.size)
    keep_rotations(here, directory)
    counts = []
    for layout in LAYOUTS[here.world.size]:
        attend = invariant_attention()
        trainer = build_engine(here, directory, layout, max_tokens=512, attend=attend)
        firsts = range(0, here.world.size, layout.tp)
        replicas = tuple(tuple(range(i, i + layout.tp)) for i in firsts)
        options = {"enable_prefix_caching": layout.pp == 1}
        limits = {
            "tensor_parallel": layout.tp,
            "engine_options": options,
            "max_num_seqs": 16 * num_calls,
            "kv_cache_gib": 0.03 * num_calls,
        }
        with closing(
            loaded_rollout(here, directory, replicas, LIMITS.model_copy(update=limits))
        ) as engine:
            for call in range(num_calls):
                lengths = torch.randint(1, 32, (num_prompts,), generator=random).tolist()
                prompts = [torch.randint(5, 60, (n,), generator=random).tolist() for n in lengths]
                # Several answers to a prompt share its tokens, here and in the trainer's rows.
                prompts = [p for p in prompts for _ in range(2)]
                sampling = Sampling(40, (1.0, 0.7)[call % 2])
                counts.append(_compare(engine, trainer, prompts, sampling))
    num_tokens, num_different = map(sum, zip(*counts, strict=True))
    assert num_tokens > 60 * num_prompts * len(counts)
    assert num_different == 0


def keep_rotations(here, directory):
    """Leave in vLLM what an ordinary engine leaves that was not closed, as those of runs."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    replicas = tuple((rank,) for rank in range(here.world.size))
    with closing(rollout_of(here, directory, replicas, OTHER)):
        kept = dict(_ROPE_DICT)
    _ROPE_DICT.update(kept)


def _compare(engine, trainer, prompts, sampling):
    """How many tokens were sampled, and how many of their log-probs have another bit in the
    trainer."""
    responses = generated(engine, prompts, sampling, range(len(prompts)))
    pairs = [*zip(prompts, responses, strict=True)]
    sequences = [torch.tensor([*prompt, *response.tokens]) for prompt, response in pairs]
    outputs = trainer.infer(sequences, temperature=sampling.temperature)
    ours = torch.cat([torch.tensor(response.log_probs) for _, response in pairs])
    own = zip(outputs, pairs, strict=True)
    theirs = torch.cat([output.log_probs[len(prompt) - 1 :] for output, (prompt, _) in own])
    return len(ours), int((ours.view(torch.int32) != theirs.view(torch.int32)).sum())


@pytest.mark.world(4)
def test_a_run_trains_from_the_bits_that_were_sampled(here, tiny_model, shared_directory):
    rows = run(
        here,
        "batch-invariant",
        tiny_model("qwen3", True, num_hidden_layers=4, **VLLM_HEADS),
        shared_directory,
        recipe="rl",
        parallel={"tensor_parallel": 2, "sequence_parallel": True, "recompute": "full"},
        batch=BATCH | {"mini_batches": 1},
        rollout=ROLLOUT
        | {"engine": "vllm", "tensor_parallel": 2, "kv_cache_gib": 0.03, "batch_invariant": True},
        reward={"function": write_reward(here, shared_directory)},
    )
    for row in rows:
        assert row["training/rollout_log_probs_diff_max"] == 0.0
        assert row["actor/ppo_kl"] == 0.0


@pytest.mark.world(1)
def test_kernels_that_depend_on_the_batch_are_refused(monkeypatch):
    from verl_hpc.rollout import vllm_invariant

    layer = SimpleNamespace(weight=torch.zeros(24, 16), cpu_linear=None)
    model = SimpleNamespace(modules=lambda: [layer])
    arch = SimpleNamespace(num_heads=4, num_kv_heads=2, head_size=32)
    vllm_invariant.check(model, arch, tensor_parallel=2, longest=100)
    attend = vllm_invariant.attend

    def other(query, key, value, lengths, scale, queries=None):
        attended = attend(query, key, value, lengths, scale, queries)
        return attended.nextafter(torch.tensor(9.0)) if queries and lengths[0] > 40 else attended

    monkeypatch.setattr(vllm_invariant, "attend", other)
    with pytest.raises(ConfigError, match="at 42 tokens for one; shorten rollout.max_prompt_tok"):
        vllm_invariant.check(model, arch, tensor_parallel=2, longest=100)
    product = vllm_invariant.ops.onednn_mm
    monkeypatch.setattr(
        vllm_invariant.ops,
        "onednn_mm",
        lambda handler, rows, bias: product(handler, rows, bias) + 1e-3 * (len(rows) == 5),
    )
    with pytest.raises(ConfigError, match="24 x 16 depend on the number of rows .*, here 5;"):
        vllm_invariant.check(model, arch, tensor_parallel=2, longest=100)
