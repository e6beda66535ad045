"""Verl's scripts are counted by what becomes of them."""

import pytest

from benchmarks.verl_scripts import outcome
from tests.unit.migration.scripts import needs_bubblewrap

WORDS = "data.train_files=a data.val_files=b actor_rollout_ref.model.path=m steps=1"


@needs_bubblewrap
@pytest.mark.parametrize(
    ("more", "what", "why"),
    [
        ("", "a run", ""),
        ("trainer.device=tpu", "keys are refused by name", "trainer.device"),
        ("trainer.experiment_name=$X", "asks for a variable, and with it: a run", "X"),
        ("no=$X", "asks for a variable, and with it: keys are refused by name", "X"),
        ("data.seed=$(pip list)", "asks for what is not in the script", "line 1"),
        ("data.no_such_key=1", "keys are refused by name", "data.no_such_key"),
        ("actor_rollout_ref.model.path=Qwen/Qwen2-VL-7B", "keys are refused by name", "qwen2_vl"),
        ("no_key", "a word or a setting is an error", "expected key=value"),
    ],
)
def test_what_becomes_of_a_script(tmp_path, more, what, why):
    script = tmp_path / "run.sh"
    script.write_text(f"python3 -m verl.trainer.main_ppo {WORDS} {more}\n")
    found, reasons = outcome(script)
    assert found == what and why in "".join(reasons)
