"""Nodes that are kept out: the list, its expiry, and what submissions make of it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.cluster.requests import profile, request
from verl_hpc.cluster.excluded import (
    ExcludedNode,
    exclude,
    exclude_list,
    excluded_nodes,
    forget,
    read_excluded,
)
from verl_hpc.cluster.job import plan_job
from verl_hpc.errors import ConfigError


@pytest.fixture
def site(tmp_path):
    return profile(tmp_path, preflight={"exclude_list": str(tmp_path / "group/list.json")}).site


@pytest.fixture
def path(site):
    return exclude_list(site)


def names(path):
    return [entry.node for entry in read_excluded(path)]


def test_a_node_stays_on_the_list_until_it_expires(site, path):
    (added,) = exclude(path, site, [("n3", "pairs: slow")])
    assert (added.site, added.node, added.reason) == ("here", "n3", "pairs: slow")
    now = datetime.now(UTC)
    until = datetime.fromisoformat(added.until)
    assert timedelta(days=6.9) < until - now < timedelta(days=7.1)
    assert (names(path), read_excluded(path, until - timedelta(seconds=1))) == (["n3"], [added])
    assert read_excluded(path, until) == []


def test_an_expired_node_is_dropped_when_the_list_is_written(site, path):
    old = ExcludedNode("here", "n1", "old", "2020-01-01T00:00:00+00:00")
    path.parent.mkdir()
    path.write_text(json.dumps({"version": 1, "nodes": [vars(old)]}))
    exclude(path, site, [("n2", "new")])
    assert [entry["node"] for entry in json.loads(path.read_text())["nodes"]] == ["n2"]


def test_a_node_that_fails_again_is_there_once_and_for_longer(tmp_path, path, site):
    exclude(path, site, [("n3", "first")])
    longer = profile(tmp_path, preflight={"exclude_days": 30}).site
    exclude(path, longer, [("n3", "second"), ("n4", "x")])
    assert [(e.node, e.reason) for e in read_excluded(path)] == [("n3", "second"), ("n4", "x")]


def test_nodes_of_another_site_are_left_alone(tmp_path, path, site):
    exclude(path, profile(tmp_path, name="there").site, [("n3", "theirs")])
    exclude(path, site, [("n3", "ours"), ("n9", "ours")])
    nodes = [(e.site, e.node) for e in read_excluded(path)]
    assert nodes == [("here", "n3"), ("here", "n9"), ("there", "n3")]
    assert excluded_nodes(site) == ("n3", "n9")


def test_forgetting(site, path):
    assert exclude(path, site, []) == []
    assert not path.exists()
    assert (read_excluded(path), excluded_nodes(site)) == ([], ())
    exclude(path, site, [("n3", "x"), ("n4", "y")])
    forget(path, "n3")
    assert names(path) == ["n4"]
    with pytest.raises(ConfigError, match=r"--forget n3: not on the list .*; excluded are: n4"):
        forget(path, "n3")


@pytest.mark.parametrize(
    "text", ["", "[1", "[]", '{"nodes": [{"node": "n3"}]}', '{"nodes": 3}', '{"nodes": [3]}']
)
def test_a_file_that_is_no_list(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a list of excluded nodes") as caught:
        read_excluded(path)
    assert str(path) in str(caught.value)


def test_a_list_that_cannot_be_written(site, tmp_path):
    (tmp_path / "group").write_text("a file where a directory should be")
    with pytest.raises(ConfigError, match=r"cannot be (read|written)|not a list"):
        exclude(exclude_list(site), site, [("n3", "x")])


def test_the_place_of_the_list(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert str(exclude_list(None)) == "/home/me/.config/verl_hpc/excluded_nodes.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/settings")
    assert str(exclude_list(None)) == "/settings/verl_hpc/excluded_nodes.json"
    monkeypatch.setenv("GROUP", "/group")
    shared = profile(tmp_path, preflight={"exclude_list": "$GROUP/nodes.json"}).site
    assert str(exclude_list(shared)) == "/group/nodes.json"


def directives(asked):
    return [s for s in plan_job(asked).directives if s.name == "exclude"]


def with_excluded(asked, *nodes):
    return type(asked)(**{**vars(asked), "excluded": nodes, "exclude_list": "/l.json"})


def test_submissions_leave_nodes_out_and_say_who_wants_it(tmp_path):
    plain = request(tmp_path)
    asked = request(tmp_path, site=profile(tmp_path, extra_directives=["--exclude=n9"]))
    assert directives(plain) == []
    settings = [directives(one)[0] for one in (with_excluded(plain, "n3", "n4"), asked)]
    settings += directives(with_excluded(asked, "n3"))
    expected = [("n3,n4", "/l.json"), ("n9", "site"), ("n3,n9", "/l.json and site")]
    assert [(setting.value, setting.origin) for setting in settings] == expected
