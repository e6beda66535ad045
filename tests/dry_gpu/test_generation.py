"""transformers as rollout engine, on a GPU."""

from __future__ import annotations

import json

from tests.dry_gpu.one_rank import SMALL, one_rank
from tests.dry_gpu.rollout_rank import sum_in_one_kernel, weight_sync
from tests.dry_gpu.test_refit import WAITS
from verl_hpc.layout.live import check_parameters
from verl_hpc.rollout.factory import build_rollout
from verl_hpc.rollout.protocol import Request, Sampling
from verl_hpc.testing.tiny import save_tokenizer


class Two:
    """Two requests, and their responses."""

    def __init__(self) -> None:
        self.waiting = [(i, Request([1, 2, 3 + i], seed=i)) for i in range(2)]
        self.responses = {}

    def next(self, running):
        taken, self.waiting = self.waiting, []
        return taken

    def ended(self, index, response):
        self.responses[index] = response

    def stops(self, asks):
        return False


def test_transformers_generates(gpu, tmp_path, monkeypatch):
    sum_in_one_kernel(monkeypatch)
    parallel, rollout = {"tensor_parallel": 2}, {"engine": "hf"}
    one = one_rank(gpu, "Qwen3-8B", 1, 2, parallel, fields=SMALL, rollout=rollout)
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(one.fields))
    path, config = str(tmp_path), one.run.rollout
    engine = build_rollout(
        one.world, one.arch, path, path, one.layouts.replicas, config, "bfloat16"
    )
    check_parameters(engine.shard_map, 1, engine.weights, "transformers")
    sync = weight_sync(one, engine)
    one.gpu.clear()
    sync.to_generation()
    assert {name: one.gpu.waits[name] for name in WAITS} == WAITS
    feed = Two()
    engine.generate(feed, Sampling(4))
    assert {len(r.tokens) for r in feed.responses.values()} == {4}
