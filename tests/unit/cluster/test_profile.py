"""Site profiles: what is allowed, what a mistake is answered with, and where values come from."""

from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from tests.unit.cluster.requests import CONTAINERS, CPU_SITE, ROOT, SITE, profile, write
from verl_hpc.cluster.containers import ContainerConfig
from verl_hpc.cluster.gpu import GpuFigures
from verl_hpc.cluster.profile import load_for_job, load_profile, parse_site_override
from verl_hpc.cluster.setting import COMMAND_LINE, DEFAULT
from verl_hpc.cluster.setting import SITE as FROM_SITE
from verl_hpc.cluster.site import BudgetConfig, PreflightConfig, RestartConfig, Site
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import LinkFigures

SHIPPED = sorted((ROOT / "slurm").rglob("*.yaml"))

KINDS = get_args(get_args(ContainerConfig)[0])


def refusal(directory, overrides=None, **fields):
    with pytest.raises(ConfigError) as caught:
        profile(directory, overrides, **fields)
    return str(caught.value)


@pytest.mark.parametrize(("fields", "ranks", "cores"), [(SITE, 4, 8), (CPU_SITE, 2, 4)])
def test_ranks_share_the_cores(tmp_path, fields, ranks, cores):
    site = load_profile(write(tmp_path / "site.yaml", fields)).site
    assert (site.ranks_per_node, site.cores_per_rank) == (ranks, cores)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_profiles_are_valid_and_named_after_their_files(path):
    assert load_profile(path).site.name == path.stem


def test_generic_names_every_setting_and_gives_the_defaults():
    tree = yaml.safe_load((ROOT / "slurm/generic.yaml").read_text())
    assert list(tree) == [name for name in tree if name in Site.model_fields]
    assert set(tree) == set(Site.model_fields)
    assert set(tree["restarts"]) == set(RestartConfig.model_fields)
    assert set(tree["preflight"]) == set(PreflightConfig.model_fields)
    needed = {"name", "gpus_per_node", "cores_per_node"}
    shown = Site.model_validate(tree)
    bare = Site.model_validate({name: tree[name] for name in needed})
    assert shown == bare


def test_the_documentation_has_every_setting():
    page = (ROOT / "docs/site_profile.md").read_text()
    sections = {
        "budget": BudgetConfig,
        "restarts": RestartConfig,
        "preflight": PreflightConfig,
        "links": LinkFigures,
    }
    names = {*Site.model_fields, *GpuFigures.model_fields} - {*sections, "gpu_figures"}
    names |= {f"{name}.{field}" for name in sections for field in sections[name].model_fields}
    names |= {name for model in KINDS for name in model.model_fields if name != "kind"}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_every_field_says_what_it_is():
    for model in (Site, PreflightConfig, RestartConfig, LinkFigures, GpuFigures, *KINDS):
        for name, field in model.model_fields.items():
            assert field.description or name == "kind", f"{model.__name__}.{name}"


# Mistakes


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"partitoin": "x"}, ["partitoin: no such setting; did you mean partition"]),
        ({"zzz": 1}, ["zzz: no such setting; known: account, "]),
        ({"restarts": {"bye": 1}}, ["restarts.bye: no such setting; did you mean by?"]),
        ({"container": {"kind": "pyxis", "image": "x", "mount": []}},
         ["container.mount: no such setting; did you mean mounts or mount_home?"]),
        ({"container": {"kind": "pyxis"}}, ["container.image: is needed and not given"]),
        ({"container": {"kind": "lxc"}}, ["container.kind = 'lxc': must be one of bare"]),
        ({"container": CONTAINERS["podman"], "exclusive": False}, ["sees all GPUs of the node"]),
        ({"container": CONTAINERS["docker"]}, ["kind = docker with mpi = pmi2", "mpi: none"]),
        ({"account": ""}, ["account = ''", "must be one word"]),
        ({"partition": "a, b"}, ["partition = 'a, b'", "must be one word"]),
        ({"cluster": ""}, ["cluster = ''", "must be one word"]),
        ({"memory": ""}, ["memory = ''", "must be one word"]),
        ({"mpi": "--mpi=pmix"}, ["mpi = '--mpi=pmix'"]),
        ({"extra_directives": ["--nodes=4"]}, ["'--nodes=4'", "set --nodes instead"]),
        ({"extra_directives": ["--output=x"]}, ["'--output=x'", "set directory instead"]),
        ({"gpu_request": "gpus"}, ["gpu_request = 'gpus'", "'gpus-per-node', 'gres' or 'none'"]),
        ({"node_address": "ib0"}, ["node_address = 'ib0'", "{node"]),
        ({"umask": "rwx"}, ["umask = 'rwx'"]),
        ({"umask": 27}, ["umask = 27: must be text", "a number (027 is 27); put it in quotes"]),
        ({"environment": {"A": True}}, ["environment.A = True", "true or false; put it in quotes"]),
        ({"gpus_per_node": -1}, ["gpus_per_node = -1", "greater than or equal to 0"]),
        ({"gpus_per_node": 0}, ["gpus_per_node = 0 needs tasks_per_node"]),
        ({"tasks_per_node": 8}, ["tasks_per_node = 8 is more than the 4 GPUs"]),
        ({"cores_per_node": 3}, ["cores_per_node = 3 is less than the 4 ranks"]),
        ({"signal_lead_s": 70000}, ["signal_lead_s = 70000", "65535"]),
        ({"restarts": {"by": "hope"}}, ["restarts.by = 'hope'", "'requeue' or 'chain'"]),
        ({"extra_directives": ["mem=1"]}, ["extra_directives.0 = 'mem=1'", "--name=value"]),
        ({"setup": ["a\nb"]}, ["setup = 'a\\nb'", "must be single lines"]),
        ({"name": "n\ntouch x"}, ["name = ", "must be single lines"]),
        ({"memory": "9G\rtouch x"}, ["memory = ", "must be single lines"]),
        ({"account": "a\u2028b"}, ["account = ", "must be single lines"]),
        ({"environment": {"A\nB": "x"}}, ["environment", "must be single lines"]),
        ({"container": {"kind": "bwrap", "image": "/x\ny"}},
         ["container.image = ", "must be single lines"]),
        ({"environment": {"A B": "1"}}, ["environment", "A B"]),
        ({"environment": {"HF_TOKEN": "x"}}, ["environment.HF_TOKEN looks like a secret",
                                              "pass_environment"]),
        ({"environment": {"URI": "db://me:pw@host/"}}, ["environment.URI looks like a secret"]),
        ({"setup": ["a b", "export HF_TOKEN=hf_x"]}, ["setup, line 2", "pass_environment"]),
        ({"setup": ["a", "b --url db://me:pw@host/"]}, ["setup, line 2: looks like a secret"]),
        ({"container": {**CONTAINERS["pyxis"], "mounts": ["a:b:c:d"]}}, ["container.mounts.0",
                                                                        "SOURCE[:TARGET[:ro]]"]),
        ({"memory": 900}, ["memory = 900", "put it in quotes"]),
        ({"partitoin": "x", "mpi": "open mpi"}, ["partitoin", "mpi"]),
        # Options that a submission decides.
        *(({"extra_directives": [word]}, [told]) for word, told in (
            ("--clusters=c2", "set cluster instead"),
            ("--usage", "a submission reads what sbatch says of its job; leave it out"),
            ("--ntasks=3", "set tasks_per_node instead"),
            ("--no-requeue", "set restarts.by instead"),
            ("--chdir=/x", "'--chdir=/x': paths of the run are relative to it; cd to it before"),
            ("--constraint h100", "is not an option; write --name or --name=value"),
            ("--parsable", "a submission reads what sbatch says of its job; leave it out"),
        )),
        # Masks that take files from their owner, and caches that no list of mounts can have.
        *(({"umask": umask}, ["umask"]) for umask in ("777", "0177", "0o27")),
        *(({"caches": caches}, ["caches = '", "such as /shared/me/caches"])
          for caches in ("/", "/a:b", "/a,b", "here")),
    ],
)  # fmt: skip
def test_what_a_mistake_is_answered_with(tmp_path, fields, words):
    message = refusal(tmp_path, **fields)
    assert message.startswith(f"--cluster {tmp_path / 'site.yaml'}:\n")
    assert [word for word in words if word not in message] == []


def test_the_value_of_a_secret_is_not_repeated(tmp_path):
    assert "hunter2" not in refusal(tmp_path, environment={"DB_PASSWORD": "hunter2"})
    assert "hunter2" not in refusal(tmp_path, setup=["export DB_PASSWORD=hunter2"])


def test_a_profile_that_is_not_there_names_those_that_are(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=r"nowhere.yaml: no such file; .*slurm/lab.yaml"):
        load_profile("nowhere.yaml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="none below slurm/"):
        load_profile("nowhere.yaml")


# Overrides and origins


def test_overrides_are_yaml_below_a_prefix():
    assert parse_site_override("site.restarts.most=3") == ("restarts.most", 3)
    assert parse_site_override("site.container={kind: bare}") == ("container", {"kind": "bare"})
    for word in ("site.", "site.mpi", "site.=3", "site.setup=[a"):
        with pytest.raises(ConfigError, match="override"):
            parse_site_override(word)


def test_origins(tmp_path):
    given = {"account": "me", "environment.A": "2", "restarts.by": "chain"}
    fields = {"mpi": "pmix", "environment": {"B": "1"}, "restarts": {"most": 3}}
    loaded = profile(tmp_path, given, **fields)
    origins = dict.fromkeys(given, COMMAND_LINE)
    origins |= dict.fromkeys(("environment.B", "restarts.most", "mpi"), FROM_SITE)
    origins |= dict.fromkeys(("offline", "container.kind"), DEFAULT)
    assert {name: loaded.origin(name) for name in origins} == origins
    assert loaded.site.environment == {"A": "2", "B": "1"}
    loaded = profile(tmp_path, {"container": CONTAINERS["pyxis"]})
    assert loaded.origin("container.image") == COMMAND_LINE


def test_lists_add_to_the_sites_and_an_empty_one_takes_them_away(tmp_path):
    path = write(tmp_path / "site.yaml", SITE | {"extra_directives": ["--constraint=h100"]})
    added = ("extra_directives", ["--comment=r"])
    for given, words, origins in (
        ([added], ["--constraint=h100", "--comment=r"], [FROM_SITE, COMMAND_LINE]),
        ([("extra_directives", []), added], ["--comment=r"], [COMMAND_LINE]),
    ):
        loaded = load_profile(path, given)
        assert loaded.site.extra_directives == words
        assert [s.origin for s in loaded.options("extra_directives")] == origins
    loaded = load_profile(path, [added, ("setup", ["module load a"])])
    assert loaded.site.setup == ["module load a"]


def test_mounts_of_another_kind_of_container_do_not_stay(tmp_path):
    path = write(tmp_path / "site.yaml", SITE | {"container": CONTAINERS["podman"], "mpi": "none"})
    more = ("container.mounts", ["/x"])
    assert load_profile(path, [more]).site.container.mounts == ["/data:/in:ro", "/x"]
    kind = [("container.kind", "pyxis"), ("container.image", "a.sqsh"), more]
    assert load_profile(path, kind).site.container.mounts == ["/x"]


def test_options_of_one_submission(tmp_path):
    path = write(tmp_path / "site.yaml", SITE | {"extra_directives": ["--constraint=h100"]})
    more = ["reservation=r", "--contiguous"]
    loaded = load_for_job(path, ["site.python=python3"], {"qos": "q"}, more)
    words = ["--constraint=h100", "--reservation=r", "--contiguous"]
    assert (loaded.site.python, loaded.site.qos) == ("python3", "q")
    assert loaded.site.extra_directives == words


def test_variables_of_sbatch_stand_in_for_what_nobody_gives(tmp_path):
    path = write(tmp_path / "site.yaml", SITE | {"partition": "gpu"})
    environ = {"SBATCH_ACCOUNT": "theirs", "SBATCH_PARTITION": "urgent", "SBATCH_QOS": ""}
    loaded = load_for_job(path, [], {}, environ=environ)
    assert (loaded.site.account, loaded.origin("account")) == ("theirs", "SBATCH_ACCOUNT")
    assert (loaded.site.partition, loaded.origin("partition")) == ("gpu", FROM_SITE)
    assert loaded.site.qos is None
    given = load_for_job(path, [], {"account": "mine"}, environ=environ)
    assert (given.site.account, given.origin("account")) == ("mine", COMMAND_LINE)


def test_a_resolved_profile_reads_back_as_itself(tmp_path):
    for name, container in CONTAINERS.items():
        site = profile(tmp_path, container=container, mpi="none").site
        again = load_profile(write(tmp_path / f"{name}.yaml", site.model_dump(mode="json")))
        assert again.site == site
        assert isinstance(again.site.container, BaseModel)


def test_a_file_of_measurements_is_named_from_the_profiles_directory(tmp_path):
    assert profile(tmp_path, measured="m.json").site.measured == str(tmp_path / "m.json")
    given = profile(tmp_path, {"measured": "here.json"}, measured="m.json")
    assert given.site.measured == "here.json"
