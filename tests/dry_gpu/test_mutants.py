"""Faults put into verl_hpc are noticed by the tests of this tier."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.dry_gpu import torch_cuda
from tests.dry_gpu.mutants import MUTANTS, changed_text, put_in
from tests.dry_gpu.one_rank import COUNTED
from tests.slow import all_slow

ON_EVERY_PUSH = [
    "bounds of rows stay on the host",
    "received weights are unpacked before they are there",
]


def test_all_faults_have_their_places():
    for mutant in MUTANTS.values():
        changed_text(mutant)


@pytest.mark.parametrize(
    "name", [*ON_EVERY_PUSH, *all_slow(*sorted(MUTANTS.keys() - set(ON_EVERY_PUSH)))]
)
def test_fault_is_noticed(gpu, request, name):
    mutant = MUTANTS[name]
    put_in(mutant)
    module, function = mutant.test.split(".")
    test = getattr(importlib.import_module(f"tests.dry_gpu.{module}"), function)
    given = {n: request.getfixturevalue(n) for n in inspect.signature(test).parameters}
    with pytest.raises(Exception, match=mutant.says):
        test(**given)
        assert not torch_cuda.gpu().order.races, torch_cuda.gpu().order.races
    torch_cuda.gpu().order.races.clear()
    COUNTED.clear()  # no rows of what is wrong
