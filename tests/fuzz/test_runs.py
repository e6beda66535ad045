"""Real runs of one rank on bad input: a named error, or the weights of the undisturbed run."""

import os
import subprocess
import sys

import pytest

from tests.fuzz import data, models, numbers, rewards, tokenizers
from tests.fuzz.cases import Case, prepare
from tests.fuzz.judge import fault
from verl_hpc.testing.tiny import make_tiny_model

CASES = {
    kind.__name__.rpartition(".")[2]: kind.CASES
    for kind in (data, models, tokenizers, rewards, numbers)
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return make_tiny_model(tmp_path_factory.mktemp("model"), "qwen2", tied=True, **sizes, **heads)


def test_there_are_enough_cases_of_every_kind():
    counts = {kind: len(cases) for kind, cases in CASES.items()}
    least = {"data": 50, "models": 50, "tokenizers": 15, "rewards": 50, "numbers": 20}
    assert all(counts[kind] >= number for kind, number in least.items()), counts
    names = [case.name for cases in CASES.values() for case in cases]
    assert len(names) == len(set(names)) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_bad_input_ends_in_a_named_error(kind, model, tmp_path):
    undisturbed = prepare(None, tmp_path / "undisturbed", model)
    places = {c: prepare(c, tmp_path / f"{i}", model) for i, c in enumerate(CASES[kind])}
    listed = tmp_path / "list"
    listed.write_text("".join(f"{place}\n" for place in (undisturbed, *places.values())))
    subprocess.run(
        [sys.executable, "-m", "tests.fuzz.warm", str(listed)],
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    assert fault(Case("undisturbed", lambda _: None, "same"), undisturbed, undisturbed) is None
    told = {case.name: fault(case, place, undisturbed) for case, place in places.items()}
    wrong = [f"{name}: {why}" for name, why in told.items() if why is not None]
    assert not wrong, f"{len(wrong)} of {len(told)} are unclean:\n" + "\n".join(wrong)
