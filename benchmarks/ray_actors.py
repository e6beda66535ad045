"""The Ray side of `first_rollout_vs_ray`; runs in Ray's own environment, which lacks verl_hpc.

usage: python ray_actors.py bare|vllm|transformers SPEC.json RESULT.json

Writes the Unix time at the end of every stage; of a stage inside the actors, that of the last one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

Times = dict[str, float]


class Bare:
    """Does nothing but answer."""

    def meet(self) -> Times:
        return {"actors answer": time.time()}


class VllmActor(Bare):
    """A vLLM engine in the actor's process, with the settings that verl_hpc gives its own."""

    def first_rollout(self, spec: dict[str, Any], prompts: list[str]) -> Times:
        ends: Times = {}
        import vllm._custom_ops
        from vllm import LLM, SamplingParams

        ends["torch and vLLM imported"] = time.time()
        vllm._custom_ops._supports_onednn = False
        engine = LLM(
            model=spec["model"],
            dtype="float32",
            max_model_len=spec["prompt_tokens"] + spec["response_tokens"],
            max_num_seqs=256,
            enforce_eager=True,
            kv_cache_memory_bytes=spec["kv_cache_bytes"],
            disable_log_stats=True,
        )
        ends["engine, weights loaded"] = time.time()
        # A seed and log-probs for every response, which training needs.
        sampling = [
            SamplingParams(max_tokens=spec["response_tokens"], seed=i, logprobs=0)
            for i in range(len(prompts))
        ]
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        assert {len(o.outputs[0].token_ids) for o in outputs} == {spec["response_tokens"]}
        ends["first generation"] = time.time()
        return ends


class TransformersActor(Bare):
    """A transformers model in the actor's process."""

    def first_rollout(self, spec: dict[str, Any], prompts: list[str]) -> Times:
        ends: Times = {}
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        ends["torch and transformers imported"] = time.time()
        tokenizer = AutoTokenizer.from_pretrained(spec["model"])
        model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32)
        ends["engine, weights loaded"] = time.time()
        ids = tokenizer(prompts, return_tensors="pt")["input_ids"]
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=spec["response_tokens"],
            do_sample=True,
        )
        assert output.shape[1] == ids.shape[1] + spec["response_tokens"]
        ends["first generation"] = time.time()
        return ends


KINDS = {"bare": Bare, "vllm": VllmActor, "transformers": TransformersActor}


def main() -> None:
    kind, spec_file, out = sys.argv[1:]
    spec = json.loads(Path(spec_file).read_text())
    ends: Times = {"interpreter": time.time()}
    # Actors inherit this; a runtime_env would start one more agent.
    os.environ.update(_variables())
    import ray

    ends["Ray imported"] = time.time()
    count = spec["actors"]
    # One CPU an actor, as its users ask for; Ray need not know that there are fewer.
    ray.init(num_cpus=count)
    ends["ray.init"] = time.time()
    actors = [ray.remote(KINDS[kind]).options(num_cpus=1).remote() for _ in range(count)]
    _last(ends, ray.get([actor.meet.remote() for actor in actors]))
    if kind != "bare":
        share = len(spec["prompts"]) // count
        parts = [spec["prompts"][i * share : (i + 1) * share] for i in range(count)]
        calls = zip(actors, parts, strict=True)
        _last(ends, ray.get([actor.first_rollout.remote(spec, part) for actor, part in calls]))
    Path(out).write_text(json.dumps(ends))
    ray.shutdown()


def _variables() -> dict[str, str]:
    """What verl_hpc sets for its own ranks."""
    return {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "0"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _last(ends: Times, of_actors: list[Times]) -> None:
    for stage in of_actors[0]:
        ends[stage] = max(actor[stage] for actor in of_actors)


if __name__ == "__main__":
    main()
