from verl_hpc.trainer.evaluate import held_out_metrics


def test_a_prompt_that_was_dropped_counts_as_wrong():
    found = held_out_metrics([1.0, 0.5, 1.0, 0.1], 8)
    assert found == {
        "val/score/mean": 2.6 / 8,
        "val/accuracy": 0.25,
        "val/num_prompts": 8.0,
        "val/num_dropped": 4.0,
    }
