"""What moves between placements, and what is refused."""

import pytest
import torch

from verl_hpc.errors import FlowError
from verl_hpc.flow import Move
from verl_hpc.placement.layouts import Pool
from verl_hpc.step.exchange import Communicators, Exchange
from verl_hpc.step.placement import Placement
from verl_hpc.testing.local import LocalControl
from verl_hpc.testing.local_run import local_session


def test_a_value_of_another_kind_is_named():
    control = LocalControl()
    places = {
        name: Placement(Pool(name, ((0,),)), 0, control, torch.device("cpu"))
        for name in ("train", "critic")
    }
    exchange = Exchange(local_session().world, places, Communicators(control))
    move = Move(("penalty",), "train", "critic", False, "samples")
    with pytest.raises(FlowError, match="value 'penalty': a dict cannot move from train to critic"):
        exchange.move(move, {"penalty": {}})
