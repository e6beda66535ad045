"""When a rank starts a debugger, and which users its gate lets in."""

import os
import socket
from types import SimpleNamespace

from verl_hpc.runs.attach import (
    Listening,
    answer,
    ask_for_debugger,
    read_answer,
    take_requests,
    withdraw_request,
)
from verl_hpc.runtime.debug import attach
from verl_hpc.runtime.debug.attach import Attachments
from verl_hpc.runtime.debug.debugger import owner_of_peer


class Store(dict):
    """A job's store, as far as requests need it."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)


def ranks(directory, size=3):
    worlds = (SimpleNamespace(rank=rank, host=f"n{rank}") for rank in range(size))
    return [Attachments(world, directory) for world in worlds]


def test_a_request_reaches_its_rank_alone_and_once(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(attach, "listen", lambda: started.append(1) or 4711)
    store, job = Store(), ranks(tmp_path)
    for rank in job:
        rank.look(store)
    assert store == {} and not started
    name = ask_for_debugger(tmp_path, 2)
    for rank in (*job, *job):
        rank.look(store)
    answer = read_answer(tmp_path, 2, name)
    assert (answer.rank, answer.host, answer.port, answer.error) == (2, "n2", 4711, "")
    assert (answer.pid, len(started)) == (os.getpid(), 1)
    assert take_requests(tmp_path) == {}, "rank 0 has taken it"
    again = ask_for_debugger(tmp_path, 2)
    for rank in job:
        rank.look(store)
    assert read_answer(tmp_path, 2, again).port == 4711
    assert read_answer(tmp_path, 2, name) is None


def test_every_rank_at_a_breakpoint_can_be_asked_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(attach, "listen", lambda: 4711)
    store, job = Store(), ranks(tmp_path)
    names = [ask_for_debugger(tmp_path, rank) for rank in (2, 0, 1)]
    for rank in job:
        rank.look(store)
    found = [read_answer(tmp_path, *asked) for asked in zip((2, 0, 1), names, strict=True)]
    assert [one.host for one in found] == ["n2", "n0", "n1"]


def test_why_there_is_no_debugger(tmp_path, monkeypatch):
    def listen():
        raise ModuleNotFoundError("No module named 'debugpy'")

    monkeypatch.setattr(attach, "listen", listen)
    (rank,) = ranks(tmp_path, 1)
    name = ask_for_debugger(tmp_path, 0)
    rank.look(Store())
    assert read_answer(tmp_path, 0, name).error == "ModuleNotFoundError: No module named 'debugpy'"


def test_files_that_cannot_be_read_are_none(tmp_path):
    for text in ("", "{}", "[]", "7"):
        (tmp_path / "attach-0.json").write_text(text)
        (tmp_path / "attached-0.json").write_text(text)
        assert take_requests(tmp_path) == {}
        assert read_answer(tmp_path, 0, "a") is None
    (tmp_path / "attach-x.json").write_text('{"request": "a"}')
    assert take_requests(tmp_path) == {}
    withdraw_request(tmp_path, 0)
    answer(tmp_path, Listening("a", 0, "n0", 1, 2, "/x"))
    assert read_answer(tmp_path, 0, "a").port == 2


def test_the_kernel_says_whose_a_connection_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        assert (owner_of_peer(accepted), owner_of_peer(client)) == (os.getuid(), os.getuid())
        accepted.close()
        client.close()
