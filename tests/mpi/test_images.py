"""Images in prompts: the trainer and the rollout engines read them alike."""

import json
from base64 import b64encode
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.mpi.any_models import BFLOAT16_IN_VLLM, any_model
from tests.mpi.engines_for_tests import build_engine, rollout_of
from tests.mpi.recipe_runs import BATCH, configure, finish, write_reward
from tests.mpi.recipe_runs import ROLLOUT as RUN
from tests.mpi.test_lora_arrival import sync_of
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.data.tokenizer import load_tokenizer
from verl_hpc.engines.protocol import OutputOptions
from verl_hpc.hf.images import image_reader
from verl_hpc.hf.pictures import Picture, packed
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.rollout.protocol import Feed, Request, Response, Sampling
from verl_hpc.step.batch import as_bytes

pytestmark = pytest.mark.world(2)
ROLLOUT = RolloutConfig(max_prompt_tokens=64, max_response_tokens=16, kv_cache_gib=0.03)
OFTEN = "qwen2_5_vl"
SLOW = pytest.mark.slow(reason="a further family, or engine; run with --slow")


def exactness(name: str) -> tuple[str, float]:
    """The type that vLLM computes a model in, and how near its log-probs are to the trainer's."""
    return ("bfloat16", 0.3) if name in BFLOAT16_IN_VLLM else ("float32", 1e-4)


def families():
    return [pytest.param(n, marks=() if n == OFTEN else SLOW) for n in WITH_IMAGES]


def pictures(directory, rank: int) -> list[Picture]:
    """Files of noise, of different sizes and modes."""
    random, found = np.random.default_rng(rank), []
    for number, (size, mode) in enumerate([((40, 70), "RGB"), ((64, 32), "L")]):
        file = directory / f"noise-{rank}-{number}.png"
        noise = random.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(noise).convert(mode).save(file)
        found.append(Picture(path=str(file)))
    return found


def requests_of(directory, shared, rank: int) -> list[Request]:
    """Requests with two images, with one, twice, and with none; the second rank has no image."""
    encoder = Encoder(
        load_tokenizer(str(directory), 300), images=image_reader(read_architecture(directory))
    )
    one, two = pictures(shared, rank)
    chosen = [
        ("a <image> b <image>", (one, two)),
        ("is it <image>", (two,)),
        ("is it <image>", (two,)),
        ("no", ()),
    ]
    requests = []
    for number, (text, images) in enumerate(chosen if rank == 0 else chosen[-1:]):
        problem = Problem(number, [{"role": "user", "content": text}], images=images)
        ids = encoder.prompt(problem)
        requests.append(Request(ids, number, images=encoder.image_prompt(problem, ids)))
    # A model may write what stands for a part of an image.
    token = 265 if directory.name == "gemma3" else 260
    said = Response((token, 70), (-1.0, -1.0), "unfinished")
    return [*requests, replace(requests[0], seed=9, prefix=said)]


def answered(rollout, requests):
    feed = Feed(requests)
    rollout.generate(feed, Sampling(max_tokens=12))
    return feed.responses


def check_alike(engine, requests, responses, near):
    sequences = [
        torch.tensor([*q.prompt, *r.tokens]) for q, r in zip(requests, responses, strict=True)
    ]
    wanted = OutputOptions(images=[as_bytes(packed(q.images)) for q in requests])
    outputs = engine.infer(sequences, wanted=wanted)
    worst = 0.0
    for request, response, output in zip(requests, responses, outputs, strict=True):
        before = len(request.prefix.tokens)
        mine = output.log_probs[len(request.prompt) - 1 + before :]
        worst = max(worst, (mine - torch.tensor(response.log_probs[before:])).abs().max().item())
    assert worst < near
    return sequences, wanted


@pytest.mark.parametrize("kind", ["vllm", pytest.param("hf", marks=SLOW)])
@pytest.mark.parametrize("name", families())
def test_log_probs_of_answers_to_images_are_the_rollout_engines(here, shared_directory, name, kind):
    """Before an update and behind it, which a rank without an image takes part in; an engine that
    has seen the images before answers as a new one does."""
    directory, size = any_model(here, shared_directory, name), here.world.size
    engine = build_engine(
        here, directory, TrainLayout(dp=size), engine="fsdp", lr=1e-2, max_tokens=128
    )
    requests = requests_of(directory, shared_directory, here.world.rank)
    config, replicas = ROLLOUT.model_copy(update={"engine": kind}), tuple((r,) for r in range(size))
    dtype, near = exactness(name) if kind == "vllm" else ("float32", 1e-4)

    def loss(indices, outputs):
        return sum(o.log_probs.square().mean() for o in outputs), {}

    with closing(rollout_of(here, directory, replicas, config, dtype)) as rollout:
        weights = sync_of(here, engine, rollout, None, dtype)
        weights.to_generation()
        before = {n: t.clone() for n, t in engine.weights.items()}
        sequences, wanted = check_alike(engine, requests, answered(rollout, requests), near)
        engine.update(sequences, loss, wanted=wanted)
        assert not [n for n, t in engine.weights.items() if torch.equal(t, before[n])]
        weights.to_generation()
        responses = answered(rollout, requests)
        check_alike(engine, requests, responses, near)
    with closing(rollout_of(here, directory, replicas, config, dtype)) as new:
        sync_of(here, engine, new, None, dtype).to_generation()
        assert answered(new, requests) == responses


@pytest.mark.parametrize("name", families())
def test_a_frozen_tower_stays_and_has_no_state(here, shared_directory, name):
    directory, size = any_model(here, shared_directory, name), here.world.size
    engine = build_engine(
        here, directory, TrainLayout(dp=size), engine="fsdp", lr=1e-2, vision_tower="frozen"
    )
    before = {n: t.clone() for n, t in engine.weights.items()}
    requests = requests_of(directory, shared_directory, here.world.rank)
    sequences = [torch.tensor([*q.prompt, 5, 6]) for q in requests]
    wanted = OutputOptions(images=[as_bytes(packed(q.images)) for q in requests])
    engine.update(
        sequences, lambda _, found: (sum(o.log_probs.mean() for o in found), {}), wanted=wanted
    )
    still = {n for n, t in engine.weights.items() if torch.equal(t, before[n])}
    state = {n.split("/")[1] for n in engine.optimizer_tensors()}
    assert still == engine.weights.keys() - state
    kinds = ("visual.", "vision_tower.", "multi_modal_projector.")
    assert still == {n for n in before if any(kind in n for kind in kinds)}
    regions = engine.optimizer_map().tensors
    assert not any(kind in n for n in regions for kind in kinds) and regions


@pytest.mark.parametrize("name", families())
def test_a_critic_reads_images(here, shared_directory, name):
    directory, layout = any_model(here, shared_directory, name), TrainLayout(dp=here.world.size)
    critic = build_engine(here, directory, layout, engine="fsdp", head="value")
    if (head := critic.weights.get(HEAD_TENSORS["value"])) is not None:  # zero, and on one rank
        head.fill_(0.1)
    request = requests_of(directory, shared_directory, 0)[1]
    (_, other), values = pictures(shared_directory, here.world.rank + 2), []
    for shown in (request.images, replace(request.images, pictures=(other,))):
        wanted = OutputOptions(images=[as_bytes(packed(shown))])
        values.append(critic.infer([torch.tensor(request.prompt)], wanted=wanted)[0].values)
    assert values[0][0] == values[1][0] and (values[0] - values[1]).abs().max() > 1e-3


COLORS = ("red", "green", "blue", "white")


def data_of(here, directory):
    """Rows with an image of one color, with two, and with none; files, and one in the row."""
    file = directory / "shown.jsonl"
    if here.world.rank == 0:
        for color in COLORS:
            Image.new("RGB", (40, 48), color).save(directory / f"{color}.png")
        inside = {"base64": b64encode((directory / "white.png").read_bytes()).decode()}
        rows = []
        for number in range(24):
            colors = [COLORS[(number + i) % 4] for i in range(number % 3)]
            shown = [inside if color == "white" else f"{color}.png" for color in colors]
            text = f"{number} {'<image>' * len(shown)}"
            chat = [{"role": "user", "content": text}]
            rows.append({"prompt": chat, "images": shown, "answer": COLORS[number % 4]})
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    here.control.barrier()
    return {"kind": "files", "paths": [str(file)]}


def run_of(here, shared_directory, name, recipe, **changes):
    data = data_of(here, shared_directory)
    return finish(
        here,
        configure(
            f"{recipe}-images-{name}",
            any_model(here, shared_directory, name.partition("-")[0]),
            shared_directory,
            **{"recipe": recipe, "optimizer": {"lr": 1e-2}, "parallel": {"engine": "fsdp"}}
            | {"data": {"train": data, "evaluation": data, "overlap": "warn"}}
            | changes,
        ),
    )


@pytest.mark.slow(reason="whole runs; run with --slow")
@pytest.mark.parametrize("place", ["together", "apart", "adapters"])
@pytest.mark.parametrize("name", WITH_IMAGES)
def test_grpo_trains_on_images(here, shared_directory, name, place):
    """Old log-probs, those of a reference, and updates are of the same images, on other ranks than
    generated with them, too."""
    dtype, near = exactness(name)
    apart = {"apart": {"placement": {"train": 0, "rollout": 1}}, "adapters": {"lora": {"rank": 4}}}
    steps = run_of(
        here,
        shared_directory,
        f"{name}-{place}",
        "rl",
        **apart.get(place, {}),
        algorithm={"kl": {"placement": "loss", "coefficient": 0.1}},
        batch=BATCH | {"mini_batches": 1},
        reward={"function": write_reward(here, shared_directory)},
        rollout=RUN | {"engine": "vllm", "kv_cache_gib": 0.05, "dtype": dtype},
    )
    assert len(steps) == 2
    for row in steps:
        assert row["training/rollout_log_probs_diff_max"] < near
        assert row["actor/grad_norm"] > 0
        assert row["reshard/received_bytes"] == row["reshard/minimum_bytes"] > 0
    assert steps[0]["actor/kl_loss"] == pytest.approx(0, abs=1e-6)


@pytest.mark.slow(reason="whole runs; run with --slow")
@pytest.mark.parametrize("tower", ["trained", "frozen"])
@pytest.mark.parametrize("name", [OFTEN, "qwen3_5"])
def test_answers_to_images_are_imitated(here, shared_directory, name, tower):
    """In two lives, the second of which goes on with what the first one saved."""
    path = str(any_model(here, shared_directory, name))
    more = {
        "model": {"path": path, "dtype": "float32", "vision_tower": tower},
        "checkpoint": {"resume": "auto", "every": 6},
    }
    run_of(here, shared_directory, f"{name}-{tower}", "sft", steps=6, **more)
    steps = run_of(here, shared_directory, f"{name}-{tower}", "sft", steps=12, **more)
    assert len(steps) == 12
    assert steps[-1]["sft/loss"] < 0.7 * steps[0]["sft/loss"]
