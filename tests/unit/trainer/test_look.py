"""Samples of a run, as its directory keeps them."""

from tests.unit.trainer.runs import loop, small_run
from verl_hpc.metrics.samples import read_samples


def test_each_response_names_the_step_whose_weights_began_it(tmp_path):
    run = small_run(tmp_path, steps=2, evaluation={"every": 2})
    loop(run)
    for step, kind, version in ((1, "train", 0), (2, "train", 1), (2, "evaluation", 2)):
        groups = read_samples(run.config.run_directory, step)[kind]
        versions = {response.version for group in groups for response in group.responses}
        assert versions == {version}
