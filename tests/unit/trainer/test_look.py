"""Samples of a run, as its directory keeps them."""

from tests.unit.step.operators.batches import samples, sequences
from tests.unit.trainer.runs import loop, small_run
from verl_hpc.metrics.samples import read_samples
from verl_hpc.step.batch import Scores, StepRows
from verl_hpc.trainer.look import join_samples, step_samples


def test_each_response_names_the_step_whose_weights_began_it(tmp_path):
    run = small_run(tmp_path, steps=2, evaluation={"every": 2})
    loop(run)
    for step, kind, version in ((1, "train", 0), (2, "train", 1), (2, "evaluation", 2)):
        groups = read_samples(run.config.run_directory, step)[kind]
        assert {response.version for group in groups for response in group.responses} == {version}


def test_answers_of_the_data_are_no_responses(tmp_path):
    """SFT has a rollout to evaluate with, and trains on what others wrote."""
    run = small_run(tmp_path, recipe="sft", steps=1, evaluation={"every": 1})
    loop(run)
    found = read_samples(run.config.run_directory, 1)
    assert [kind for kind, groups in found.items() if groups] == ["evaluation"]


def test_scores_from_other_ranks_than_the_responses(tmp_path):
    """A reward model apart: its ranks know scores, and those that generate the texts."""
    run = small_run(tmp_path)
    common = {"rows": StepRows(1, [0, 1]), "samples": samples()}
    texts = step_samples(run, common | {"sequences": sequences()})
    scored = step_samples(run, common | {"scores": Scores([0.5, 0.25, 1.0])})
    for parts in ([texts, scored], [scored, texts]):
        found = [[r.score for r in group.responses] for group in join_samples(parts)]
        assert found == [[0.5, 0.25], [1.0]]
