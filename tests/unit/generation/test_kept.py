import pytest

from verl_hpc.config.load import load_config
from verl_hpc.generation.kept import KeptResponses, rollout_key
from verl_hpc.generation.slots import Slot
from verl_hpc.rollout.protocol import Response
from verl_hpc.step.batch import StepRows

QUICKSTART = "configs/run/examples/quickstart.yaml"
RESPONSE = Response((1, 2), (-0.5, -0.5), "stop")


def key(*words, step=3, rows=(4, 5), task="", of=QUICKSTART):
    kept = KeptResponses(rollout_key(load_config(of, words)))
    kept.remember(StepRows(step, rows, task=task), {})
    return kept.key


def test_how_an_engine_is_sized_is_no_matter():
    assert key("rollout.kv_cache_gib=2", "rollout.max_num_seqs=3", "optimizer.lr=1") == key()


@pytest.mark.parametrize("word", ["seed=8", "rollout.temperature=0.5", "rollout.num_samples=3"])
def test_what_changes_the_responses_changes_the_key(word):
    assert key(word) != key()
    assert key(step=4) != key()
    assert key(rows=(5, 4)) != key()
    assert key(task="sums") != key(task="words")


def test_settings_of_a_task_count():
    of_tasks = "configs/run/examples/tasks.yaml"
    shorter = key("tasks.rewarded.max_response_tokens=7", of=of_tasks)
    assert shorter != key(of=of_tasks)


def test_only_responses_to_the_same_question_are_taken():
    kept, one, other = KeptResponses(), StepRows(1, [4]), StepRows(2, [4])

    def taken(rows):
        slots = [Slot(rows.step, i, 0, 4, None, [1]) for i in range(3)]
        return kept.take(rows, slots)

    assert taken(one) == {}
    kept.remember(one, {2: RESPONSE, 3: RESPONSE})
    assert (taken(one), taken(other)) == ({(1, 2): RESPONSE}, {})
    kept.remember(other, {1: RESPONSE})
    assert taken(other) == {(2, 1): RESPONSE}
