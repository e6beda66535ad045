"""Sessions of programs through the endpoint and vLLM: what is recorded is what vLLM has sampled."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from benchmarks.agent_clients import TaskPrograms
from benchmarks.session_fidelity import check, measured
from benchmarks.sessions import Recorder, Sampled, engine_of, host_of, run_programs
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.mixtures import VLLM_SIZES, mixture
from tests.unit.data.public_templates import tokenizer_of
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.prompts import Encoder
from verl_hpc.data.turns import num_shared
from verl_hpc.rollout.protocol import Branch, Response, Sampling

pytestmark = pytest.mark.world(1)
LONG = {"vocab_size": 320, "max_position_embeddings": 1024}
SIZES = {**VLLM_HEADS, **LONG}


def test_rows_have_what_vllm_sampled_and_the_trainers_log_probs(here, shared_directory):
    """Programs that go on, go back, change what was said, call tools, and ask in parallel."""
    for found in measured(here, shared_directory / "sessions", ["qwen3", "llama3_1"], 25, seed=1):
        assert found["turns"] > 100 and found["rows"] > 25
        assert found["largest_difference"] < 1e-5
        assert all(found[kind] for kind in ("goes on", "branch", "begins anew", "with tools"))
        assert found["turns"] > 20 * found["refused"]


def test_the_check_finds_what_is_wrong():
    turns = [Sampled((1, 2), (3, 4), (-1.0, -2.0), 0), Sampled((1, 2, 3, 4, 5), (6,), (-3.0,), 0)]
    right = Response((3, 4, 5, 6), (-1.0, -2.0, 0.0, -3.0), "stop", (1, 1, 0, 1))
    row = Branch((1, 2), right, {})
    assert check(turns, [row]) == {"turns": 2, "tokens": 3, "rows": 1}
    wrong = [
        {"tokens": (3, 7, 5, 6)},
        {"log_probs": (-1.0, -2.5, 0.0, -3.0)},
        {"mask": (1, 1, 1, 1)},  # of an observation
        {"mask": (1, 1, 0, 0)},
    ]
    for change in wrong:
        with pytest.raises(AssertionError, match="sampled"):
            check(turns, [replace(row, response=replace(right, **change))])
    with pytest.raises(AssertionError, match="has not sampled"):
        check(turns, [row, row])


def config_of(command, options, **changes):
    program = {"command": [command, json.dumps(options)], "sandbox": "none", "network": "node"}
    limits = {"max_prompt_tokens": 1000, "max_response_tokens": 8, "kv_cache_gib": 0.1}
    return RolloutConfig.model_validate({**limits, "program": program, **changes})


def ran(here, model, config, prompts, **options):
    """What vLLM did for a program for each prompt, and their rows."""
    engine = engine_of(here, model, config, "float32", **options)
    programs, recorder = TaskPrograms(), Recorder(engine)
    hosted = host_of(config, Encoder(tokenizer_of("llama3_1")), programs)
    with closing(engine), closing(programs), hosted as host, recorder.listening():
        given = here, engine, host, config, prompts, Sampling(8)
        responses = run_programs(*given, lambda index, number: 1000 * index + number % 1000)
    rows = [branch for response in responses for branch in response.episode.branches]
    check(recorder.ended, rows)
    return recorder, rows


CHAT = {"turns": 5, "max_tokens": 8, "says": "more"}


def test_a_turn_computes_nothing_that_an_earlier_one_has(here, tiny_model):
    """But for what is no whole block of the cache. Programs run one after another."""
    model = tiny_model("qwen2", False, **SIZES)
    config = config_of("chat", CHAT, max_num_seqs=1)
    recorder, rows = ran(here, model, config, ["hi", "hi", "another prompt"])
    assert len(recorder.ended) == 15 and len(rows) == 3
    block, computed = 32, list[tuple[int, ...]]()
    for turn in recorder.ended:
        shared = [num_shared(before, turn.prompt[:-1]) for before in computed]
        assert turn.num_cached == max(shared, default=0) // block * block
        computed.append((*turn.prompt, *turn.tokens)[:-1])
    assert sum(turn.num_cached for turn in recorder.ended) > 1000


def test_experts_of_a_row_are_those_by_which_its_turns_were_sampled(here, tiny_model):
    model, _ = mixture(tiny_model, "normalised", **VLLM_SIZES, **LONG)
    options = {"seed": 0, "rounds": 4, "system": True, "tools": False}
    config = config_of("speak", options)
    recorder, rows = ran(here, model, config, [""] * 12, keeps_experts=True)
    whole = [(*row.prompt, *row.response.tokens) for row in rows]
    for row, tokens in zip(rows, whole, strict=True):
        assert len(row.response.experts) == len(tokens) - 1
    assert len(rows) < len(recorder.ended) == len(recorder.experts)
    for turn, experts in zip(recorder.ended, recorder.experts, strict=True):
        start, said = len(turn.prompt), turn.prompt + turn.tokens
        read = slice(start - 1, len(said) - 1)  # their logits are those of the turn's tokens
        assert len(experts) == len(said) - 1
        assert any(
            (row.response.experts[read] == experts[read]).all()
            for row, tokens in zip(rows, whole, strict=True)
            if tokens[: len(said)] == said and row.response.mask[start - len(row.prompt)]
        )
