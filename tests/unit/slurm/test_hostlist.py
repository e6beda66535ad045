"""Slurm's compact host lists."""

import pytest

from verl_hpc.errors import ClusterError
from verl_hpc.slurm.hostlist import expand_hosts


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("", []),
        ("n0", ["n0"]),
        ("n[0-2,7],login", ["n0", "n1", "n2", "n7", "login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("rack[1-2]n[3,5]-ib", ["rack1n3-ib", "rack1n5-ib", "rack2n3-ib", "rack2n5-ib"]),
        ("a.b.c,d-e", ["a.b.c", "d-e"]),
    ],
)
def test_expansion(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["n[0-2", "n]", "n[a-b]", ",n0", "n0,,n1"])
def test_what_is_no_host_list(text):
    with pytest.raises(ClusterError, match="is not a Slurm host list"):
        expand_hosts(text)
