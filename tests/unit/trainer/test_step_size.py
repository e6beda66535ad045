"""A reader of a step meets so many functions and files, and no more."""

import sys
from pathlib import Path

from tests.unit.trainer.runs import small_run
from verl_hpc.trainer.loop import Loop
from verl_hpc.trainer.recipes import find_recipe, make_recipe
from verl_hpc.trainer.records import open_records
from verl_hpc.trainer.state import START

PACKAGE = f"{Path(__file__).parents[3] / 'verl_hpc'}/"
MOST_FUNCTIONS, MOST_FILES = 339, 75
"""What the second step of GRPO on one rank with the test engines calls, from its beginning to that
of the third. Comprehensions are functions, and count, up to Python 3.11."""


def test_a_step_calls_no_more_functions_than_this(tmp_path):
    run = small_run(tmp_path, steps=3, held_out=None)
    entered = set()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            entered.add((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    class Traced(Loop):
        def _step(self, step, progress):
            sys.setprofile(note if step == 2 else None)
            return super()._step(step, progress)

    with open_records(run, None) as records:
        Traced(run, make_recipe(run, find_recipe("rl", 60.0)), records).to_the_end(START)
    files = {file for file, _ in entered}
    assert ("generation/score.py", "score") in entered, "the step was traced"
    assert len(entered) <= MOST_FUNCTIONS, sorted(entered)
    assert len(files) <= MOST_FILES, sorted(files)
