"""Agreement of ranks on a failure; what the other ranks say is played back to one of them."""

from functools import reduce
from types import SimpleNamespace

import pytest

from verl_hpc.errors import ConfigError, DataError
from verl_hpc.runtime.control import Control


def rank_of_three(rank, others):
    """Control of one rank; `others` is what each rank says, this one's own place aside."""
    control = Control(SimpleNamespace(rank=rank, size=3))

    def merge(value, combine):
        said = list(others)
        said[rank] = value
        return reduce(combine, said)

    control.merge = merge
    return control


def fail(error):
    raise error


FINE = (None, None, None)


def test_work_that_succeeds_everywhere():
    assert rank_of_three(1, FINE).together(lambda: "result") == "result"


def test_the_failing_rank_raises_its_own_error():
    error = DataError("row 7 is empty")
    with pytest.raises(DataError) as caught:
        rank_of_three(1, FINE).together(lambda: fail(error))
    assert caught.value is error
    assert error.agreed


def test_the_others_raise_the_same_kind_and_say_whose_it_is():
    others = (None, None, (2, DataError, "row 7 is empty"))
    with pytest.raises(DataError, match=r"^row 7 is empty \(on rank 2\)$") as caught:
        rank_of_three(0, others).together(lambda: "fine here")
    assert caught.value.agreed


def test_of_several_failures_the_lowest_ranks_counts_everywhere():
    others, mine = ((0, ConfigError, "steps = 0"), None, None), DataError("mine")
    with pytest.raises(ConfigError, match=r"^steps = 0 \(on rank 0\)$"):
        rank_of_three(2, others).together(lambda: fail(DataError("mine")))
    with pytest.raises(DataError) as caught:
        rank_of_three(0, (None, (1, ConfigError, "steps = 0"), None)).together(lambda: fail(mine))
    assert caught.value is mine


def test_the_same_error_everywhere_names_no_rank():
    """All ranks read the same file and found the same fault."""
    same = [(rank, ConfigError, "steps = 0") for rank in range(3)]
    with pytest.raises(ConfigError, match=r"^steps = 0$"):
        rank_of_three(2, same).together(lambda: fail(ConfigError("steps = 0")))


def test_a_bug_is_not_agreed_upon():
    control = rank_of_three(0, FINE)
    control.merge = lambda value, combine: pytest.fail("a bug must not wait for the others")
    with pytest.raises(ZeroDivisionError):
        control.together(lambda: 1 // 0)
