"""Programs while weights change: one rank trains, and one generates with them."""

import json
import math
import shutil
from statistics import fmean

import pytest
import torch
from safetensors.torch import save_file

from tests.mpi import recipe_runs
from tests.mpi.conftest import VLLM_HEADS, Reference
from tests.mpi.forced_experts import choices
from tests.mpi.mixtures import QWEN, mixture_for_vllm
from tests.mpi.placed_runs import configure, run_again, weights_of
from tests.mpi.test_async_tokens import log_probs_are_those_of_the_versions, noted
from verl_hpc.data.order import Order, Position
from verl_hpc.generation.conversation import _num_turns

pytestmark = pytest.mark.world(2)
__all__ = ["noted"]

AGENT = """
import glob, json, os, sys, time, urllib.request

def say(said):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": said, "max_tokens": 4}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    return [*said, message, {"role": "user", "content": "b"}]

def wait(until):
    while not until():
        time.sleep(0.01)

def trained(step):
    return os.path.exists(f"{here}/metrics.jsonl") and len([*open(f"{here}/metrics.jsonl")]) >= step

def said_in(step):
    return len(glob.glob(f"{here}/said-{step}-*"))

here, row = sys.argv[1], json.load(open(os.environ["VERL_HPC_ROW"]))["index"]
with open(f"{here}/begun", "a") as begun:
    begun.write(f"{row} ")
if "together" in sys.argv:  # all programs of a step take their first turn at the same time
    def num_begun():
        return len(open(f"{here}/begun").read().split())
    together = -(-num_begun() // PROGRAMS) * PROGRAMS
    wait(lambda: num_begun() >= together)
step = json.load(open("steps.json")).get(str(row), 0) if "waits" in sys.argv else 0
said = [{"role": "user", "content": "a"}]
for number in range(1 + row % MOST):
    said = say(said)
    if step and not number:
        open(f"{here}/said-{step}-{os.getpid()}", "w").close()
        # The programs of the next step have a turn before those of this step end, and go on when
        # this step has trained.
        wait(lambda: step < 3 or trained(step - 2))
        wait(lambda: step == STEPS or said_in(step + 1) >= PROGRAMS)
json.dump(len(said[1]["content"] or "") % 3, open(os.environ["VERL_HPC_SCORE"], "w"))
"""
STEPS, PROMPTS, SAMPLES = 4, 3, 2
TOP_K = QWEN["num_experts_per_tok"]


def rows_of_steps(count=PROMPTS):
    """The rows of each step; of few they are all different."""
    order, position = Order(30, 0, True), Position()
    for step in range(1, STEPS + 1):
        rows, position = order.take(position, count)
        yield step, rows


@pytest.fixture
def configured(here, tiny_model, shared_directory):
    """`configured(name, ...)`: a run with programs of 1 to 4 turns, by the number of their row."""

    def make(name, placement, *words, batch=(), most=4, model=None, replay="none", **rollout):
        batch = {"size": PROMPTS, "max_tokens_per_micro_batch": 800} | dict(batch)
        num_programs = SAMPLES * (batch["size"] + batch.get("spare_prompts", 0))
        if here.world.rank == 0:
            code = AGENT.replace("STEPS", f"{STEPS}").replace("PROGRAMS", f"{num_programs}")
            code = code.replace("MOST", f"{most}")
            (shared_directory / "agent.py").write_text(code)
            steps = {row: step for step, rows in rows_of_steps() for row in rows}
            (shared_directory / "steps.json").write_text(json.dumps(steps))
        command = ["python", "agent.py", f"{shared_directory}/runs/{name}", *words]
        program = {"command": command, "sandbox": "none"}
        program |= {"network": "node", "directory": str(shared_directory)}
        limits = {
            "engine": "vllm",
            "kv_cache_gib": 0.03,
            "num_samples": SAMPLES,
            "program": program,
        }
        limits |= {"max_prompt_tokens": 160, "max_response_tokens": 200}
        return configure(
            shared_directory,
            model or tiny_model("qwen2", True, **VLLM_HEADS),
            name,
            "grpo",
            steps=STEPS,
            batch=batch,
            placement=placement,
            reward={"function": "program"},
            algorithm={
                "old_log_probs": "rollout",
                "advantage": {"name": "reinforce_plus_plus"},
                "router_replay": replay,
            },
            optimizer={"lr": 1e-3},  # so that the log-probs of two versions are not alike
            checkpoint={"every": 1, "keep": STEPS},
            rollout=limits | rollout,
        )

    return make


def test_programs_go_on_under_newer_weights_and_none_is_left_out(
    here, tiny_model, shared_directory, configured, noted
):
    config = configured("async", {"train": "0", "rollout": "1"}, "waits", staleness=2)
    begun = config.run_directory / "begun"
    recipe_runs.finish(here, config)
    trained, _ = noted()
    assert len(trained) == STEPS
    model = tiny_model("qwen2", True, **VLLM_HEADS)
    if here.world.rank == 0:
        log_probs_are_those_of_the_versions(trained, config, model)
    for (step, rows), (_, samples, sequences) in zip(rows_of_steps(), trained, strict=True):
        # Every program that was asked is trained on, however long it took.
        assert [s.group for s in samples] == [0, 0, 1, 1, 2, 2]
        for sample, mask, versions in zip(
            samples, sequences["mask"], sequences["versions"], strict=True
        ):
            num_turns = 1 + rows[sample.group] % 4
            assert _num_turns(mask) == num_turns
            if step > 2:  # the first turn is two steps old, and the others one
                first = int((mask == 0).nonzero()[0, 0]) if num_turns > 1 else len(mask)
                assert versions[:1].tolist() == [step - 3]
                assert set(versions[first:].tolist()) == ({step - 2} if num_turns > 1 else set())
    once = begun.read_text().split()
    assert len(once) == STEPS * PROMPTS * SAMPLES, "each program was begun once"
    # Killed after the second step, and resumed: what had been finished is trained on.
    before = weights_of(config, 3)
    run_again(here, config, [3, 4], shared_directory)
    resumed, _ = noted()
    (_, _, first), (_, _, again) = trained[2], resumed[STEPS]
    for name in ("tokens", "versions", "rollout_log_probs"):
        assert all(torch.equal(a, b) for a, b in zip(first[name], again[name], strict=True))
    after = weights_of(config, 3)
    assert all(torch.equal(after[name], before[name]) for name in before)
    anew = begun.read_text().split()[len(once) :]
    assert set(map(int, anew)) <= set(trained[3][0].rows), "of the last step alone"


@pytest.mark.parametrize(("staleness", "words"), [(1, []), (2, ["waits"])])
def test_the_trainer_has_the_experts_of_the_versions_that_sampled(
    here, tiny_model, shared_directory, configured, noted, staleness, words
):
    """The oracle: what the routers of transformers choose with the weights of each version. With a
    staleness of 2, turns of a program have different versions."""
    model, _ = mixture_for_vllm(tiny_model, "normalised")
    settings = {"model": model, "replay": "rollout", "staleness": staleness}
    apart = {"train": "0", "rollout": "1"}
    config = configured(f"replay-{staleness}", apart, *words, **settings)
    rows = recipe_runs.finish(here, config)
    assert max(row["rollout/lag/max"] for row in rows) == staleness
    trained, _ = noted()
    if here.world.rank > 0:
        return
    sampled = [s for *_, sequences in trained for s in sequences["tokens"]]
    of_versions = [choices(Reference(model), sampled, TOP_K)]
    for version in range(1, STEPS):
        weights = hugging_face_directory(shared_directory, model, config, version)
        of_versions.append(choices(Reference(weights), sampled, TOP_K))
    own, other = [], []
    told = [e for *_, sequences in trained for e in sequences["experts"]]
    versions = [v for *_, sequences in trained for v in sequences["versions"]]
    assert any(len(set(v.tolist())) > 1 for v in versions) == (staleness == 2)
    for number, (of_tokens, of_response) in enumerate(zip(told, versions, strict=True)):
        by_version = [chosen[number] for chosen in of_versions]
        experts = of_tokens.view_as(by_version[0])
        # The experts of a token are those that the log-prob of the next one came from.
        before = len(experts) - len(of_response)
        for at, version in enumerate(of_response.tolist(), before):
            same = [experts[at].sort().values.equal(c[at].sort().values) for c in by_version]
            own.append(same[version])
            other.append(same[(version + 1) % STEPS])
    assert fmean(own) > 0.995, "but for ties"
    assert fmean(other) < 0.95, "versions that nobody could tell apart"


def hugging_face_directory(directory, model, config, version):
    """Return a copy of the model's directory with the weights of a version."""
    made = directory / f"{config.name}-version-{version}"
    shutil.copytree(model, made)
    save_file(weights_of(config, version), made / "model.safetensors", {"format": "pt"})
    return made


def test_without_staleness_a_split_run_is_the_synchronous_one(here, configured):
    """Bit for bit, where which programs ask at the same time changes nothing."""
    one_by_one = {"max_num_seqs": 1, "engine_options": {"enable_prefix_caching": False}}
    weights = []
    for name, placement in (
        ("apart", {"train": "0", "rollout": "1"}),
        ("together", {"actor": "0", "reward": "1"}),
    ):
        config = configured(name, placement, **one_by_one)
        recipe_runs.finish(here, config)
        weights.append(weights_of(config, STEPS))
    apart, together = weights
    assert all(torch.equal(apart[name], together[name]) for name in apart)


def surprise(one, other):
    """Kolmogorov-Smirnov's statistic of two samples, over its critical value at 1 %."""
    below = [[sum(x <= at for x in s) / len(s) for at in {*one, *other}] for s in (one, other)]
    largest = max(abs(a - b) for a, b in zip(*below, strict=True))
    return largest / (1.63 * math.sqrt(1 / len(one) + 1 / len(other)))


@pytest.mark.slow
def test_a_step_that_takes_what_is_finished_first_sees_short_programs_more_often(
    here, configured, noted
):
    """Else the lengths that are trained on are those that were asked."""
    for spare, staleness in ((0, 2), (8, 2), (8, 0)):
        config = configured(
            f"spare-{spare}-{staleness}",
            {"train": "0", "rollout": "1"},
            *(["together"] if not staleness else []),
            batch={"size": 8, "spare_prompts": spare},
            most=8,
            staleness=staleness,
        )
        rows = recipe_runs.finish(here, config)
        assert all(row.get("batch/prompts_dropped", 0) == spare for row in rows)
        trained = noted()[0][-STEPS:]
        offered = [1 + r % 8 for _, of_step in rows_of_steps(8 + spare) for r in of_step] * SAMPLES
        num_turns = [_num_turns(mask) for _, _, sequences in trained for mask in sequences["mask"]]
        if spare == 0:
            assert sorted(num_turns) == sorted(offered)
        elif staleness == 0:
            assert surprise(offered, num_turns) > 1 and fmean(num_turns) < fmean(offered)
