"""What is refused before a job waits in the queue."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.unit.cluster.requests import CONTAINERS, profile, request
from tests.unit.layout.models import PUBLISHED
from tests.unit.sources.hubs import COMMIT, OTHER, hf_repository
from verl_hpc.cluster.checks import check_own_code, check_passed, check_paths, check_request, inputs
from verl_hpc.cluster.job import plan_job
from verl_hpc.errors import ConfigError, DataError, ModelError
from verl_hpc.sources.local import with_local_models

FILES = {"kind": "files", "paths": ["train.jsonl"]}


@pytest.fixture
def here(tmp_path):
    """A directory with a model, a data file and a reward function."""
    (tmp_path / "model").mkdir()
    (tmp_path / "train.jsonl").write_text("")
    (tmp_path / "reward.py").write_text("def score():\n    pass\n")
    return tmp_path


def refusal(directory, *overrides, site=None, run=None):
    asked = request(directory, *overrides, site=site, run=run)
    with pytest.raises(ConfigError) as caught:
        check_paths(plan_job(asked))
    return str(caught.value)


def check(asked):
    check_request(plan_job(asked))


def check_files(directory, *overrides, **more):
    asked = request(directory, *overrides, **more)
    check_paths(plan_job(asked))


def image(*mounts, **fields):
    """A container of Pyxis, in which no file of an image is looked for."""
    return {"kind": "pyxis", "image": "registry#x", "mounts": list(mounts)} | fields


# Ranks


def test_ranks_that_do_not_fit_the_layout(tmp_path):
    asked = request(tmp_path, "parallel={tensor_parallel: 4, pipeline_parallel: 4}")
    with pytest.raises(ConfigError) as caught:
        check(asked)
    for part in ("--nodes 2 x 4 ranks = 8", "4 x", "= 16", "start a multiple of 16"):
        assert part in str(caught.value)
    check(request(tmp_path, "parallel={tensor_parallel: 4, pipeline_parallel: 2}"))


def test_a_model_that_can_be_read_is_checked_against_the_layout(tmp_path):
    published(tmp_path / "model")
    check(request(tmp_path, "parallel.tensor_parallel=4"))
    with pytest.raises(ConfigError, match="parallel"):
        check(request(tmp_path, "parallel.tensor_parallel=3", nodes=3))


# Roles and placements


def published(directory, **changes):
    fields = next(iter(PUBLISHED.values()))[0] | changes
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(fields))


def test_heads_that_the_engine_cannot_serve_without_gpus_are_refused(tmp_path):
    published(tmp_path / "model", head_dim=8)
    on_cpus = profile(tmp_path, gpus_per_node=0, tasks_per_node=4)
    says = "rollout.engine = vllm: the model's heads have 8 elements, .* takes 32, 64, .*engine: hf"
    with pytest.raises(ConfigError, match=says):
        check(request(tmp_path, site=on_cpus))
    check(request(tmp_path, "rollout.engine=hf", site=on_cpus))
    check(request(tmp_path))


GAE = "algorithm.advantage.name=gae"
DELAYED = ("model.dtype=bfloat16", "model.fp8={recipe: delayed}")
AHEAD = "rollout.staleness=1"


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["placement={train: 0-3, rollout: node 2}"],
         ["placement.rollout = node 2", "nodes 0 to 1", "start more"]),
        (["placement={train: 0-2, rollout: 3-7}", "parallel.tensor_parallel=2"],
         ["parallel: tensor_parallel 2", "the 3 ranks", "choose smaller sizes"]),
        (["placement={train: 0-3, rollout: 4-6, reward: 7}", "rollout.tensor_parallel=2"],
         ["rollout tensor_parallel = 2", "the 3 ranks 4-6", "a divisor of 3"]),
        ([GAE, "roles={critc: {}}"], ["roles.critc", "did you mean critic"]),
        (["roles={rollout: {}}"], ["roles.rollout", "a label's", "choose another"]),
        ([AHEAD], ["rollout.staleness = 1", "rank 0 generates and computes the actor", "give"]),
        ([AHEAD, "placement={train: 0-3, rollout: 2-7}"],
         ["rollout.staleness = 1", "rank 2 generates", "placement.rollout"]),
        ([GAE, *DELAYED, "placement={actor: 0-3, critic: 2-7}"],
         ["model.fp8.recipe = delayed", "actor and critic share some", "another recipe"]),
        *(([GAE, f"roles={{critic: {{path: {path}}}}}"],
           ["roles.critic", "64 tokens", "model.path's", "the same tokenizer"])
          for path in ("other", "step")),
    ],
)  # fmt: skip
def test_roles_and_placements_that_do_not_work(tmp_path, overrides, words):
    published(tmp_path / "model")
    published(tmp_path / "step/hf", vocab_size=64)
    published(tmp_path / "other", vocab_size=64)
    with pytest.raises(ConfigError) as caught:
        check(request(tmp_path, *overrides))
    assert [word for word in words if word not in str(caught.value)] == []


def tokenizer(directory, *texts):
    vocab = {text: number for number, text in enumerate(texts)}
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))


OTHER_TOKEN = (
    r"roles.critic: its tokenizer has another token of id 1, 'Y', than the run's \('y'\); all "
    "roles read the same token ids, so choose a model with the same tokenizer"
)


@pytest.mark.parametrize(
    ("where", "path"), [("other", "other"), ("step/hf", "step"), ("step/hf_critic", "step")]
)
def test_roles_of_other_tokenizers_are_refused(tmp_path, where, path):
    published(tmp_path / "model")
    published(tmp_path / where)
    asked = request(tmp_path, GAE, f"roles.critic.path={path}")
    check(asked)
    tokenizer(tmp_path / "model", "x", "y")
    check(asked)
    tokenizer(tmp_path / where, "x", "y", "z")
    check(asked)
    tokenizer(tmp_path / where, "x", "Y")
    with pytest.raises(ConfigError, match=OTHER_TOKEN):
        check(asked)


def test_roles_are_compared_with_the_tokenizer_that_the_run_takes(tmp_path):
    for name, text in (("model", "Y"), ("other", "Y"), ("third", "y")):
        published(tmp_path / name)
        tokenizer(tmp_path / name, "x", text)
    tokenizer(tmp_path / "words", "x", "y")
    check(request(tmp_path, GAE, "model.tokenizer=words"))
    check(request(tmp_path, GAE, "model.tokenizer=words", "roles.critic.path=third"))
    with pytest.raises(ConfigError, match=OTHER_TOKEN):
        check(request(tmp_path, GAE, "model.tokenizer=words", "roles.critic.path=other"))


def test_tokenizers_are_read_through_the_mounts(tmp_path, tmp_path_factory):
    host = tmp_path_factory.mktemp("host")
    for directory, text in ((tmp_path / "model", "Y"), (host / "m", "Y")):
        published(directory)
        tokenizer(directory, "x", text)
    tokenizer(host / "words", "x", "y")
    site = profile(tmp_path, container=image(f"{host}:/in:ro"), node_scratch="/local")
    critic = "roles.critic.path=/in/m"
    with pytest.raises(ConfigError, match=OTHER_TOKEN):
        check(request(tmp_path, GAE, critic, "model.tokenizer=/in/words", site=site))
    check(request(tmp_path, GAE, critic, f"model.tokenizer={host}/words", site=site))


def test_a_model_that_no_mount_shows_is_not_read(tmp_path, tmp_path_factory):
    """What lies there on the host is not what the ranks would see; check_paths refuses it."""
    host = tmp_path_factory.mktemp("host")
    published(tmp_path / "model")
    published(host / "m", vocab_size=64)
    site = profile(tmp_path, container=image("/data"), node_scratch="/local")
    check(request(tmp_path, GAE, f"roles.critic.path={host}/m", site=site))


# Files


def test_a_run_whose_files_are_there(here):
    check_files(here, "reward.function=reward.py:score", run={"data": {"train": FILES}})


@pytest.mark.parametrize(
    "override, name",
    [
        ("model.path=nowhere", "model.path = nowhere"),
        ("model.tokenizer=nowhere", "model.tokenizer = nowhere"),
        ("roles.reward.path=nowhere", "roles.reward.path = nowhere"),
        ("recipe=gone.py:mine", "recipe = gone.py"),
        ("data.train={kind: files, paths: [train.jsonl, gone.jsonl]}", "data.train.paths = gone"),
        ("reward.function=gone.py:score", "reward.function = gone.py"),
    ],
)
def test_a_file_that_is_missing_is_named(here, override, name):
    message = refusal(here, override)
    for part in (name, "does not exist here", "check_paths: false"):
        assert part in message
    check_files(here, override, site=profile(here, check_paths=False))


@pytest.mark.parametrize("setting", ["recipe", "reward.function"])
@pytest.mark.parametrize(
    "text, words",
    [
        ("def other(): pass", ["defines no 'mine'", "it defines: other"]),
        ("def nine(): pass", ["defines no 'mine'", "did you mean nine?"]),
        ("import os", ["defines no 'mine'", "it defines nothing"]),
        ("def outer():\n    def mine(): pass", ["defines no 'mine'", "it defines: outer"]),
        ("def mine(:", ["is not Python", "line 1"]),
        ("a\0", ["is not Python"]),
    ],
)
def test_a_file_of_code_without_the_name_is_refused_unrun(here, setting, text, words):
    (here / "own.py").write_text(text)
    message = refusal(here, f"{setting}=own.py:mine")
    for word in [f"{setting} = own.py:mine", str(here / "own.py"), *words]:
        assert word in message


def test_a_file_of_code_with_the_name(here):
    job = plan_job(request(here, "recipe=own.py:mine"))
    for text in (
        "def mine(): raise ValueError",
        "raise ValueError\nclass mine: pass",
        "first, mine = 1, 2",
        "mine: object = print",
        "from nowhere import theirs as mine",
        "from nowhere import *",
        "try:\n    import nowhere\nexcept ImportError:\n    def mine(): pass",
        "def __getattr__(name): return print",
    ):
        (here / "own.py").write_text(text)
        check_own_code(job)


def test_code_that_only_compute_nodes_see(here):
    job = plan_job(request(here, "recipe=own.py:mine", site=profile(here, check_paths=False)))
    check_own_code(job)
    (here / "own.py").write_text("")
    with pytest.raises(ConfigError, match="defines no 'mine'"):
        check_own_code(job)


def test_directories_and_globs_are_listed_and_stores_are_not_asked(here):
    data = "data.train={kind: files, paths: [%s]}"
    (here / "rows").mkdir()
    check_files(here, data % "s3://bucket/rows")
    for path, words in (("rows", "rows: has no file"), ("rows/*.jsonl", "matches no file")):
        with pytest.raises(DataError, match=words):
            check_files(here, data % path)
        check_files(here, data % path, site=profile(here, check_paths=False))
    (here / "rows/a.jsonl").touch()
    check_files(here, data % "rows, rows/*.jsonl")


def test_evaluation_sets_are_looked_for_too(here):
    source = {"kind": "files", "paths": ["gone.jsonl"]}
    named = {"evaluation": {"sets": {"aime24": {"source": source}}}}
    assert "evaluation.sets.aime24.source.paths = gone.jsonl" in refusal(here, run=named)
    own = {"source": FILES, "reward": {"function": "reward.py:rate"}}
    named = {"evaluation": {"sets": {"aime24": own}}}
    told = refusal(here, run=named)
    assert "evaluation.sets.aime24.reward.function = reward.py:rate" in told
    assert "defines no 'rate'" in told


def test_an_image_is_looked_for_unless_it_is_a_registrys(here):
    message = refusal(here, site=profile(here, container=CONTAINERS["pyxis"]))
    assert "container.image = /images/a.sqsh" in message
    check_files(here, site=profile(here, container=image(image="registry#team/verl_hpc:1")))


def test_what_no_mount_shows(here, tmp_path_factory):
    site = profile(here, container=image(), node_scratch="/local")
    message = refusal(here, f"model.path={tmp_path_factory.mktemp('models')}", site=site)
    for part in ("no mount shows it", "mounted are /local, $PWD", "container.mounts"):
        assert part in message


def test_mounts_are_followed_to_the_host_and_the_later_of_two_inside_each_other(
    here, tmp_path_factory
):
    models, better = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("better")
    (models / "tiny").mkdir()
    (better / "small").mkdir()
    mounts = image(f"{models}:/models:ro", f"{better}:/models/better")
    site = profile(here, container=mounts, node_scratch="/local")
    for name in ("tiny", "better/small"):
        check_files(here, f"model.path=/models/{name}", site=site)
    assert f"{models}/big does not exist" in refusal(here, "model.path=/models/big", site=site)


def test_what_containers_show_without_a_mount(here, monkeypatch, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    (home / "model").mkdir()
    (here / "image.sqsh").write_text("")
    for container in (
        {"kind": "apptainer", "image": "image.sqsh"},
        {"kind": "pyxis", "image": "image.sqsh", "mount_home": True},
        {"kind": "bwrap", "image": "/"},
        {"kind": "bare"},
    ):
        site = profile(here, container=container, node_scratch="/local")
        check_files(here, f"model.path={home}/model", site=site)
    site = profile(here, container=image(image="image.sqsh"), node_scratch="/local")
    assert "no mount shows it" in refusal(here, f"model.path={home}/model", site=site)


# Secrets


def test_a_passed_variable_must_be_set(tmp_path, monkeypatch):
    job = plan_job(request(tmp_path, site=profile(tmp_path, pass_environment=["HF_TOKEN"])))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="HF_TOKEN is not set; export it"):
        check_passed(job)
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    check_passed(job)


# Models on a hub


@pytest.fixture
def cached(here, monkeypatch):
    """A model in the cache of a hub, and its snapshot."""
    monkeypatch.setenv("HF_HUB_CACHE", str(here / "hub"))
    sizes = json.dumps(next(iter(PUBLISHED.values()))[0]).encode()
    files = {"config.json": sizes, "model.safetensors": b""}
    return hf_repository(here / "hub", "Org/Base", COMMIT, files)


def test_a_job_gets_the_snapshot_that_was_there_when_it_was_submitted(cached, here):
    asked = request(here, "model.path=Org/Base")
    pinned = replace(asked, config=with_local_models(asked.config))
    assert dict(inputs(pinned))["model.path"] == str(cached)
    check_paths(plan_job(pinned))
    (cached.parents[1] / "refs/main").write_text(OTHER)
    check_paths(plan_job(pinned))
    with pytest.raises(ModelError, match="python -m verl_hpc fetch Org/Base$"):
        check_paths(plan_job(asked))


def test_a_snapshot_needs_its_blobs_inside_the_container(cached, here):
    """Its files are links to them."""
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    for mount, shown in ((cached, False), (cached.parents[1], True), (here / "hub", True)):
        container = image(str(mount), kind="bwrap", image=str(here))
        site = profile(here, container=container, node_scratch="/scratch")
        refused = pytest.raises(ConfigError, match=r"model.path = .*no mount shows it")
        with nullcontext() if shown else refused:
            check_files(elsewhere, "model.path=Org/Base", site=site)


def test_a_model_that_is_in_no_cache(cached, here):
    with pytest.raises(ModelError, match=r"model.tokenizer = Org/Gone: .* fetch Org/Gone$"):
        check_files(here, "model.tokenizer=Org/Gone")
    check_files(here, "model.tokenizer=Org/Gone", site=profile(here, check_paths=False))


def test_a_model_of_the_cache_is_checked_against_the_layout_and_has_to_be_whole(cached, here):
    with pytest.raises(ConfigError, match="parallel"):
        check(request(here, "model.path=Org/Base", "parallel.tensor_parallel=3", nodes=3))
    (cached / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="model.path = Org/Base@0123.* is not whole in the cache"):
        check_files(here, "model.path=Org/Base")
