"""Arguments of public functions against their annotations."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from verl_hpc.config.arguments import checked
from verl_hpc.errors import ConfigError


class Thing:
    @checked
    def __init__(self, size: int, names: Sequence[str] = (), **more: float) -> None:
        self.given = size, names, more

    @checked
    def scaled(self, by: float | None = None, parts: Mapping[str, float] | None = None) -> object:
        return by, parts


def test_what_is_given_is_handed_on_as_it_is():
    names = ["a"]
    thing = Thing(3, names)
    assert thing.given == (3, names, {}) and thing.given[1] is names
    assert thing.scaled(2) == (2, None)  # a whole number is a float, too
    assert Thing.scaled.__name__ == "scaled" and Thing.__init__.__doc__ is None


def test_numbers_of_numpy_are_numbers():
    size, _, more = Thing(np.int64(3), scale=np.float32(0.5)).given
    assert size == 3 and type(size) is int
    assert more == {"scale": 0.5}
    by, parts = Thing(1).scaled(np.float32(0.25), {"a": np.int32(1), "b": np.float64(2)})
    assert by == 0.25 and type(by) is float
    assert parts == {"a": 1, "b": 2}


WRONG_CALLS = [
    (lambda: Thing("3"), r"^Thing: size = '3'; Input should be a valid integer$"),
    (lambda: Thing(True), r"^Thing: size = True; Input should be a valid integer$"),
    (lambda: Thing(np.bool_(True)), r"^Thing: size = .*True.*; .* valid integer$"),
    (lambda: Thing(np.float64(3)), r"^Thing: size = .*3.0.*; .* valid integer$"),
    (lambda: Thing(3.0), r"^Thing: size = 3.0; .* valid integer$"),
    (lambda: Thing(1, more="x"), r"^Thing: more\['more'\] = .*; .* valid number$"),
    (lambda: Thing(1).scaled(collate_fn=len), r"no argument.*DynamicBatchSampler"),
    (lambda: Thing(1, ["a", 2]), r"^Thing: names\[1\] = \['a', 2\]; .* valid string$"),
    (lambda: Thing(1).scaled(parts=[1]), r"^Thing\.scaled: parts = \[1\]; .*dictionary"),
    (lambda: Thing(1).scaled(part={}), r"^Thing\.scaled: part is no arg.*mean parts\?$"),
    (lambda: Thing(), r"^Thing: missing a required argument: 'size'; its arguments are size"),
]


@pytest.mark.parametrize(("call", "words"), WRONG_CALLS)
def test_another_type_or_name_is_an_error_of_the_house(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
