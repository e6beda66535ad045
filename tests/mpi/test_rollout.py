"""Both rollout engines: what they sample, from which distribution, and what they leave alone."""

import dataclasses
import gc
import inspect
import re
import weakref
from contextlib import closing

import pytest
import torch
from transformers import AutoTokenizer
from vllm import EngineArgs
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

from tests.generated import generated
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import load_rollout, loaded_rollout, rollout_of
from verl_hpc.config.rollout import RolloutConfig, StructuredConfig
from verl_hpc.config.vllm_options import FIXED, SETTINGS
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.generation.answers import stop_reason
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.protocol import Response, Sampling
from verl_hpc.runtime.garbage import resume_collection

pytestmark = pytest.mark.world(2)
LIMITS = RolloutConfig(
    max_prompt_tokens=32, max_response_tokens=32, max_num_seqs=400, kv_cache_gib=0.03
)
PROMPTS = [list(range(5, 5 + n)) for n in (3, 9, 4, 12)]


@pytest.fixture(scope="module")
def directory(tiny_model):
    return tiny_model("qwen2", True, num_hidden_layers=4, **VLLM_HEADS)


@pytest.fixture(scope="module", params=["tp1", "tp2"])
def vllm(request, here, directory):
    replicas = ((0,), (1,)) if request.param == "tp1" else ((0, 1),)
    with closing(loaded_rollout(here, directory, replicas, LIMITS)) as engine:
        yield engine


@pytest.fixture
def hf(here, directory):
    config = LIMITS.model_copy(update={"engine": "hf"})
    return loaded_rollout(here, directory, ((0,), (1,)), config)


def build(here, directory, **changes):
    """An engine of one rank; `changes` of the limits, and options of vLLM's."""
    fields = {n: changes.pop(n) for n in ("kv_cache_gib", "max_num_seqs") if n in changes}
    limits = LIMITS.model_copy(update={"engine_options": changes, **fields})
    return rollout_of(here, directory, ((0,), (1,)), limits)


CONSTRAINTS = {
    "regex": ("[a-c]{2,6}x", "[a-c]{2,6}x"),
    "choice": (["yes", "no"], "yes|no"),
    "grammar": ('root ::= "1" ("+" [2-4])? "="', r"1(\+[2-4])?="),
    "json": (
        {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
        r'\{\s*"a"\s*:\s*[12]\s*\}',
    ),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_responses_are_what_a_constraint_allows(vllm, directory, name):
    value, pattern = CONSTRAINTS[name]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for temperature in (0.0, 1.0, 2.0):
        sampling = Sampling(max_tokens=32, temperature=temperature, structured={name: value})
        seeds = range(len(PROMPTS) * 4)
        for response in generated(vllm, PROMPTS * 4, sampling, seeds):
            text = tokenizer.decode(response.tokens, skip_special_tokens=True)
            # White space between the parts of JSON may go on until the limit.
            assert response.finish_reason == "stop" or name == "json", text
            assert response.finish_reason == "length" or re.fullmatch(pattern, text), text
    free = generated(vllm, PROMPTS, Sampling(max_tokens=8, temperature=1.0), range(4))
    texts = [tokenizer.decode(response.tokens) for response in free]
    assert not all(re.fullmatch(pattern, text) for text in texts)


def test_a_constraint_that_does_not_compile_is_refused_with_the_reason(vllm):
    for given, name in (
        ({"regex": "(a"}, "regex"),
        ({"json_schema": {"type": "nonsense"}}, "json_schema"),
        ({"grammar": "root ::= other"}, "grammar"),
    ):
        with pytest.raises(ConfigError, match=rf"^mine\.{name}: vLLM refuses it: \S"):
            vllm.check("mine", StructuredConfig(**given))
    vllm.check("mine", StructuredConfig(choice=["a"]))


def test_options_of_vllm_reach_it(here, directory):
    options = {"enable_prefix_caching": False, "max_num_batched_tokens": 500}
    with closing(build(here, directory, **options)) as engine:
        config = engine._llm.llm_engine.vllm_config
        assert config.cache_config.enable_prefix_caching is False
        assert config.scheduler_config.max_num_batched_tokens == 500
        assert engine.attention == "CPU_ATTN"
        load_rollout(here, engine, directory)
        assert len(generated(engine, PROMPTS, Sampling(max_tokens=4), [1, 2, 3, 4])) == 4


@pytest.mark.parametrize(
    "changes, expected",
    [
        # 2,048 bytes a token (4 layers, keys and values of 2 heads with 32 floats), two blocks of
        # 32 tokens a sequence of 64, which has 48 on average: 491 blocks, and 1,966.
        ({"kv_cache_gib": 0.002}, 256),
        ({"kv_cache_gib": 0.03}, 491 * 64 // (2 * 48)),
        ({"kv_cache_gib": 0.12}, 1024),
        ({"max_num_seqs": 7}, 7),
        ({"max_num_active_seqs": 5}, 5),
        ({"max_num_batched_tokens": 99}, 99),
    ],
)
def test_an_engine_decodes_as_many_sequences_as_its_cache_holds_or_it_is_told(
    here, directory, changes, expected
):
    with closing(build(here, directory, **{"max_num_seqs": None, **changes})) as engine:
        assert engine._core.scheduler.max_num_active_reqs == expected
        if "kv_cache_gib" in changes:
            load_rollout(here, engine, directory)
            count = expected + 40
            prompts, sampling = [PROMPTS[0]] * count, Sampling(max_tokens=2)
            responses = generated(engine, prompts, sampling, range(count))
            assert all(response.tokens for response in responses)


def test_requests_share_their_parameters_but_for_seeds_and_limits(vllm, monkeypatch):
    """A copy of all of them for each costs more than what an engine does with it."""
    given = []
    core = vllm._llm.llm_engine.engine_core
    original = core.add_request

    def add(request):
        given.append(request.sampling_params)
        return original(request)

    monkeypatch.setattr(core, "add_request", add)
    prefixes = [None, Response((6, 7), (-1.0, -1.0), "unfinished"), None, None]
    generated(vllm, PROMPTS, Sampling(max_tokens=4), [1, 2, 3, 4], prefixes=prefixes)
    assert [(p.seed, p.max_tokens) for p in given] == [(1, 4), (2, 2), (3, 4), (4, 4)]
    assert len({id(p._all_stop_token_ids) for p in given}) == 1, "shared, not copied"


@pytest.mark.parametrize(
    "options, words",
    [
        (
            {"enable_prefix_cache": False},
            "engine_options.enable_prefix_cache: vLLM 0.* has no such option; did you mean enable_",
        ),
        ({"max_num_batched_tokens": "many"}, "max_num_batched_tokens: Input should be a valid int"),
        ({"max_num_batched_tokens": 8}, r"max_num_batched_tokens \(8\)"),
        ({"enable_chunked_prefill": True}, "enable_chunked_prefill: it would cut prompts"),
        ({"long_prefill_token_threshold": 8}, "long_prefill_token_threshold: it would cut"),
        ({"max_num_scheduled_tokens": 16}, "max_num_scheduled_tokens: it would cut prompts"),
        ({"speculative_config": {"method": "ngram"}}, "speculative_config: .* leave it out"),
        ({"attention_backend": "NOPE"}, "Unknown attention backend: 'NOPE'. Valid options are"),
    ],
)
def test_options_that_vllm_does_not_take(here, directory, options, words):
    with pytest.raises(ConfigError, match=f"rollout.*{words}"):
        build(here, directory, **options)


def test_heads_that_vllm_has_no_kernel_for_on_cpus(here, tiny_model):
    """When a run builds its engine, before its first step has generated anything."""
    with pytest.raises(ConfigError, match="heads have 8 elements, .* CPUs takes 32, 64"):
        build(here, tiny_model("llama", False, head_dim=8))


@pytest.mark.parametrize("disabled", [True, False])
def test_whether_vllm_sums_with_its_own_kernel(here, directory, disabled, monkeypatch):
    wanted = []
    original = parallel_state.init_model_parallel_group

    def group(*arguments, group_name, **rest):
        wanted.append(parallel_state._ENABLE_CUSTOM_ALL_REDUCE)
        return original(*arguments, group_name=group_name, **rest)

    monkeypatch.setattr(parallel_state, "init_model_parallel_group", group)
    build(here, directory, disable_custom_all_reduce=disabled).close()
    assert set(wanted) == {not disabled}


def test_an_engine_that_is_closed_is_gone_and_what_was_frozen_stays_so(here, directory):
    build(here, directory).close()  # imports more
    resume_collection()
    frozen = gc.get_freeze_count()
    assert frozen > 100_000
    engine = build(here, directory)
    model = weakref.ref(engine._model)
    # A frozen object without references goes.
    assert abs(gc.get_freeze_count() - frozen) < 1000
    engine.close()
    assert model() is None
    assert abs(gc.get_freeze_count() - frozen) < 1000


def test_vllms_own_all_reduce_can_copy_what_graphs_sum():
    """It exists on GPUs only: what is set there has this name and this meaning."""
    source = inspect.getsource(CustomAllreduce)
    assert "self._capture_registered = register_graph_buffers" in source
    assert "self.all_reduce(input, registered=self._capture_registered)" in source


def test_what_is_refused_are_names_of_vllms():
    assert {*SETTINGS, *FIXED} <= {field.name for field in dataclasses.fields(EngineArgs)}


def test_seeds_alone_decide_what_is_sampled(vllm, here):
    """Neither generators of the process do, which are left alone, nor a sequence's neighbours."""
    torch.manual_seed(here.world.rank)
    before = torch.get_rng_state()
    sampling = Sampling(max_tokens=12)
    first = generated(vllm, PROMPTS, sampling, [1, 2, 3, 4])
    assert torch.equal(torch.get_rng_state(), before)
    tokens = [r.tokens for r in first]
    assert here.control.allgather(tokens) == [tokens] * 2, "all ranks of a replica, and replicas"
    assert generated(vllm, PROMPTS, sampling, [1, 2, 3, 4]) == first
    other = generated(vllm, PROMPTS, sampling, [5, 6, 7, 8])
    assert [r.tokens for r in other] != tokens
    (alone,) = generated(vllm, PROMPTS[2:3], sampling, [3])
    assert alone.tokens == tokens[2]
    assert len({r.tokens for r in generated(vllm, [PROMPTS[0]] * 6, sampling, range(6))}) == 6
    assert generated(vllm, [], sampling, []) == []


def test_length_and_stop_strings_end_a_response(vllm):
    (long,) = generated(vllm, [PROMPTS[0]], Sampling(max_tokens=16), [1])
    assert (len(long.tokens), long.finish_reason) == (16, "length")
    # The byte tokenizer has one token a character: stop at what is known to come.
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(vllm._llm.llm_engine.model_config.tokenizer)
    letters = [tokenizer.decode([t]) for t in long.tokens]
    letter = next(x for x in letters if x.isascii() and x.strip())
    first = letters.index(letter)
    (short,) = generated(vllm, [PROMPTS[0]], Sampling(max_tokens=16, stop=(letter,)), [1])
    assert short.finish_reason == "stop"
    assert short.tokens == long.tokens[: first + 1]
    assert stop_reason(tokenizer, short.tokens, False, (letter,)) == letter


def of_seeds(engine, seeds=range(20), **ends):
    prompts, sampling = [PROMPTS[0]] * len(seeds), Sampling(max_tokens=56, **ends)
    return generated(engine, prompts, sampling, list(seeds))


def one_with(token, responses):
    """A response with a token in its middle, and which it is."""
    return next((i, r.tokens) for i, r in enumerate(responses) if token in r.tokens[1:-1])


OPENS = 1
"""<|im_start|>, which ends nothing by itself."""


@pytest.mark.parametrize("vllm", ["tp1"], indirect=True)
def test_special_tokens_end_a_response_as_strings_and_as_tokens(vllm):
    index, tokens = one_with(OPENS, of_seeds(vllm))
    first = tokens.index(OPENS)
    both = vllm._llm.get_tokenizer().decode(tokens[first : first + 2])
    for ends, length in (
        ({"stop_token_ids": (OPENS,)}, first + 1),
        ({"stop": ("<|im_start|>",)}, first + 1),
        ({"stop": (both,)}, first + 2),
    ):
        (ended,) = of_seeds(vllm, [index], **ends)
        assert (ended.tokens, ended.finish_reason) == (tokens[:length], "stop"), ends
        said = stop_reason(vllm._llm.get_tokenizer(), ended.tokens, False, ends.get("stop", ()))
        assert said == ends.get("stop", ("<|im_start|>",))[0]


def test_tokens_end_a_response_of_transformers(hf):
    index, tokens = one_with(OPENS, of_seeds(hf))
    found = of_seeds(hf, stop_token_ids=(OPENS,))[index]
    assert (found.tokens, found.finish_reason) == (tokens[: tokens.index(OPENS) + 1], "stop")


def test_an_interruption_leaves_what_is_finished(vllm):
    """It is asked after 32 tokens, when some responses have ended and others have not."""
    prompts, seeds, sampling = [PROMPTS[0]] * 16, list(range(16)), Sampling(max_tokens=56)
    whole = generated(vllm, prompts, sampling, seeds)
    part = generated(vllm, prompts, sampling, seeds, lambda: True)
    left = [p.finish_reason == "unfinished" for p in part]
    assert left == [len(w.tokens) > 32 for w in whole]
    assert 0 < sum(left) < 16
    assert all(gone or p == w for gone, p, w in zip(left, part, whole, strict=True))
    assert generated(vllm, prompts, sampling, seeds) == whole


def test_more_prompt_tokens_than_vllm_takes_at_once(here, directory):
    """It would cut a prompt in two, and on CPUs fail for the seeds that requests bring."""
    # A large cache, so that nothing else bounds them.
    with closing(build(here, directory, kv_cache_gib=0.3)) as vllm:
        load_rollout(here, vllm, directory)
        dice = torch.Generator().manual_seed(0)
        count = 300
        prompts = torch.randint(5, 200, (count, 31), generator=dice).tolist()
        limits = vllm._llm.llm_engine.vllm_config.scheduler_config
        assert count < limits.max_num_seqs and limits.max_num_batched_tokens < count * 31
        sampling = Sampling(max_tokens=2)
        together = generated(vllm, prompts, sampling, range(count))
        cut = limits.max_num_batched_tokens // 31
        some = (0, cut - 1, cut, cut + 1, count - 1)
        alone = [generated(vllm, prompts[i : i + 1], sampling, [i])[0] for i in some]
        assert [r.tokens for r in alone] == [together[i].tokens for i in some]


def test_parameters_that_are_not_those_of_the_map_are_named(vllm, here):
    renamed = [
        dataclasses.replace(r, view=dataclasses.replace(r.view, name=name))
        for r in vllm.shard_map.regions
        for name in [r.view.name.replace("gate_up_proj", "gate_proj")]
    ]
    with pytest.raises(ModelError) as error:
        wrong = ShardMap(vllm.shard_map.tensors, renamed)
        check_parameters(wrong, here.world.rank, vllm.weights, "vLLM")
    text = str(error.value)
    assert "model.layers.0.mlp.gate_proj.weight: in the map, and not in the engine" in text
    assert "model.layers.0.mlp.gate_up_proj.weight: in the engine ([" in text


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_log_probs_are_those_of_the_distribution_sampled_from(
    vllm, reference, directory, temperature
):
    responses = generated(vllm, PROMPTS, Sampling(10, temperature), [1, 2, 3, 4])
    for prompt, response in zip(PROMPTS, responses, strict=True):
        check_log_probs(reference(directory).model, prompt, response, temperature)


def check_log_probs(model, prompt, response, temperature, atol=1e-5):
    text = torch.tensor([*prompt, *response.tokens])
    with torch.no_grad():
        logits = model(text[None]).logits[0, len(prompt) - 1 : -1] / temperature
    chosen = torch.tensor(response.tokens)[:, None]
    expected = logits.log_softmax(-1).gather(-1, chosen)[:, 0]
    torch.testing.assert_close(torch.tensor(response.log_probs), expected, atol=atol, rtol=0)


def test_transformers_decodes_greedily_what_vllm_decodes(vllm, hf):
    greedy = Sampling.from_config(LIMITS).greedy
    theirs, mine = (generated(engine, PROMPTS, greedy, [1, 2, 3, 4]) for engine in (vllm, hf))
    assert [(r.tokens, r.finish_reason) for r in mine] == [
        (r.tokens, r.finish_reason) for r in theirs
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_transformers_reports_log_probs_of_its_distribution_too(
    hf, reference, directory, temperature
):
    sampling = Sampling(max_tokens=10, temperature=temperature)
    responses = generated(hf, PROMPTS, sampling, [1, 2, 3, 4])
    assert generated(hf, PROMPTS, sampling, [1, 2, 3, 4]) == responses
    for prompt, response in zip(PROMPTS, responses, strict=True):
        check_log_probs(reference(directory).model, prompt, response, temperature)


@pytest.mark.parametrize(
    "replicas, changes, message",
    [
        (((0, 1),), {}, "rollout.tensor_parallel = 2 with rollout.engine = hf"),
        (((0,), (1,)), {"stop": ["x"]}, "rollout.stop = .* with rollout.engine = hf"),
    ],
)
def test_what_transformers_cannot_do_is_refused(here, directory, replicas, changes, message):
    config = LIMITS.model_copy(update={"engine": "hf", **changes})
    with pytest.raises(ConfigError, match=message):
        rollout_of(here, directory, replicas, config)
