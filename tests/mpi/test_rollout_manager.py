"""`RolloutManager` where a launcher has started several ranks: each answers its own prompts alone,
so that ranks may be given different ones, and any number of them."""

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import verl_hpc

PROMPTS = ["one", "twenty two", "three", "4 + 4 =", "five"]


@pytest.fixture(scope="module")
def parts(tiny_model):
    directory = tiny_model("qwen2")
    model = AutoModelForCausalLM.from_pretrained(directory)
    return verl_hpc.ActorModel(model), AutoTokenizer.from_pretrained(directory)


def manager(parts, seed=0):
    return verl_hpc.RolloutManager(*parts, num_samples=2, max_response_length=5, seed=seed)


def answers(batch):
    return [(r.prompt, r.response_ids, r.log_probs) for r in batch]


@pytest.mark.world(1, 2)
def test_ranks_with_one_seed_answer_alike(here, parts):
    mine = answers(manager(parts).generate(PROMPTS))
    assert len(mine) == 2 * len(PROMPTS)
    assert here.control.allgather(mine) == [mine] * here.world.size


@pytest.mark.world(2)
def test_every_rank_answers_its_own_prompts_as_one_process_would(here, parts):
    """Three here and two there, and a call more on one rank: nobody waits for another."""
    rank, size = here.world.rank, here.world.size
    one = manager(parts, seed=rank)
    mine = answers(one.generate(PROMPTS[rank::size]))
    if rank == 0:
        assert len(one.generate(PROMPTS[:1])) == 2
    gathered = here.control.gather(mine)
    if rank == 0:
        expected = [answers(manager(parts, r).generate(PROMPTS[r::size])) for r in range(size)]
        assert gathered == expected
        assert {prompt for part in gathered for prompt, *_ in part} == set(PROMPTS)
    here.control.barrier()
