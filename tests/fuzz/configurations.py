"""Mutated configurations: trees, YAML texts, overrides, options and site profiles, from a seed."""

# ruff: noqa: E501

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.unit.cluster.requests import CPU_SITE, RUN
from verl_hpc.config.load import parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.config.settings import settings_of

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.5, 1e-308,
    1e308, float("inf"), float("-inf"), float("nan"), "", " ", "x", "auto", "null", "0", "1e-6", "010",
    "1:30", "yes", "a\0b", "a\nb", "../..", "/", "~", "$HOME", "$(id)", "`id`", "a b", "é", "\u2028",
    "x" * 300, "x" * 100_000, "x/" * 3000, "%j", "--x", "[", "{", [], [[]], [None], ["a", 1], [""],
    {}, {"": 1}, {"x": {"y": {}}}, {1: 2}, {"name": "gae"}, {"kind": "files"}, {"token": "x"},
    [{}] * 50, list(range(2000)), {str(i): i for i in range(2000)},
)  # fmt: skip
TEXTS = (
    "1", "-1", "0", "true", "yes", "null", "~", "", " ", "[", "]", "{", "}", "{a: b", "a: b: c", "- x",
    "!!int abc", "!!float x", "!!binary x", "!!set {a}", "!!python/object:os.system x", "&a [*a]",
    "*b", "&b 1", "|", ">", "? x", "%TAG", "---", "...", "2026-99-99", "99:99", "+99:99", "9" * 5000,
    "0x" + "f" * 500, '"\\UFFFFFFFF"', '"\\ud800"', '"\\0"', "'", '"', "[" * 3000, "{a: " * 2000, "\t", "@",
    "`", "1e999", "-.inf", ".nan", "0o8", "<<", "{<<: 1}", "{<<: [1]}", "{<<: {a: 1}}", "#", ",", "\udc80",
)  # fmt: skip
NODES = (
    "1", "2", "3", "0", "-1", "1.5", "x", "", "99999999999", "9" * 5000, "65537", "1000", "1e3",
)  # fmt: skip
TIMES = (
    "10", "24:00:00", "0", "-1", "x", "", "99:99:99", "1-00", "9" * 50, "1e9", "10\n#SBATCH -x",
)  # fmt: skip
FILES = ("gone", ".", "pipe", "/dev/zero", "x" * 5000, "a\0b")
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{n}: &{n} [{','.join([f'*{b}'] * 9)}]\n" for b, n in zip("abcdefgh", "bcdefghi", strict=True)
)
INCLUDES = ("5", "[5]", '["a\\0b"]', "run.yaml", "[run.yaml]", "[..]", "[/dev/zero]", "[gone.yaml]",
            "{a: b}", "[[run.yaml]]", f"[{'x' * 5000}]", "[site.yaml]", "true", "[pipe]")  # fmt: skip


@dataclass
class Mutant:
    """What `submit --dry-run` gets."""

    run: str
    site: str
    overrides: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        options = {"--config": "run.yaml", "--cluster": "site.yaml", "--nodes": "2", "--time": "10"}
        words = [f"{name}={value}" for name, value in sorted((options | self.options).items())]
        return [*words, "--dry-run", "--", *self.overrides]

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for what `submit` cannot tell apart."""
        return (self.run, self.site, *self.words())


def mutants(seed: int, count: int) -> Iterator[Mutant]:
    """No two alike, and none without a change. The same ones for the same seed; a prefix of what a
    larger count gives."""
    seen = set(UNCHANGED)
    for index in itertools.count():
        if len(seen) == len(UNCHANGED) + count:
            return
        chance = random.Random(f"{seed}/{index}")
        kinds = (
            [_tree] * 10 + [_site] * 4 + [_text] * 4 + [_override] * 6 + [_option] * 2 + [_include]
        )
        mutant = chance.choice(kinds)(chance)
        if mutant.key not in seen:
            seen.add(mutant.key)
            yield mutant


_FULL_RUN = RUN | {
    "algorithm": {"advantage": {"name": "grpo"}},
    "roles": {"actor": {"parallel": {}, "optimizer": {}, "offload": {}}},
    "placement": {"rollout": "0-1", "train": "all"},
    "data": RUN["data"] | {"evaluation": {"kind": "files", "paths": ["a.jsonl"]}},
}
_FULL = parse_config(_FULL_RUN).model_dump(mode="json")
_FULL_SITE = CPU_SITE | {
    "account": "a", "partition": "p", "memory": "9G", "mpi": "pmi2", "python": "python",
    "container": {"kind": "pyxis", "image": "/images/a.sqsh", "mounts": ["/data:/data:ro"]}, "node_scratch": "/tmp", "environment": {"A": "1"},
    "setup": ["true"], "restarts": {"by": "requeue", "most": 3}, "srun_args": ["--x"],
    "extra_directives": ["--x=1"], "drop_directives": [], "signal_lead_s": 60,
    "pass_environment": [], "preflight": {"max_clock_skew_s": 1.0},
}  # fmt: skip
UNCHANGED = frozenset(
    Mutant(yaml.safe_dump(run), yaml.safe_dump(site)).key
    for run, site in ((RUN, CPU_SITE), (_FULL, CPU_SITE), (RUN, _FULL_SITE))
)
"""What the mutants are made from."""
_NAMES = [setting.name for setting in settings_of(RunConfig)]


def _tree(chance: random.Random) -> Mutant:
    return Mutant(yaml.safe_dump(_mutated(_FULL, chance)), yaml.safe_dump(CPU_SITE))


def _site(chance: random.Random) -> Mutant:
    return Mutant(yaml.safe_dump(RUN), yaml.safe_dump(_mutated(_FULL_SITE, chance)))


def _mutated(tree: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    changed = copy.deepcopy(tree)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        node, key = chance.choice(list(_places(changed)))
        act = chance.randrange(8)
        if act == 0:
            del node[key]
        elif act == 1 and isinstance(node, dict):
            node[_misspelt(str(key), chance)] = node.pop(key)
        elif act == 2 and isinstance(node, dict):
            node[chance.choice(["x", "", "token", "a.b", "x" * 5000, 5])] = chance.choice(VALUES)
        elif act == 3:
            node[key] = [copy.deepcopy(node[key])]
        else:
            node[key] = copy.deepcopy(chance.choice(VALUES))
    return changed


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        yield node, key
        if isinstance(value, dict | list) and len(value) < 100:
            yield from _places(value)


def _misspelt(name: str, chance: random.Random) -> str:
    at = chance.randrange(len(name) + 1)
    return chance.choice([name[:at] + name[at + 1 :], name[:at] + "x" + name[at:], name.upper()])


def _text(chance: random.Random) -> Mutant:
    run, site = yaml.safe_dump(RUN), yaml.safe_dump(CPU_SITE)
    if chance.random() < 0.05:
        return Mutant(run + LAUGHS, site)
    which = chance.random() < 0.7
    text = run if which else site
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(len(text) + 1)
        lines = text.splitlines(keepends=True) or [""]
        line = chance.randrange(len(lines))
        ways = (
            text[:at] + chance.choice(TEXTS) + text[at:],
            text[:at] + text[at + 1 :],
            text[:at],
            "".join(lines[: line + 1] + lines[line:]),
            "".join(lines[:line] + lines[line + 1 :]),
            text.replace(lines[line], lines[line].rstrip() + chance.choice(TEXTS) + "\n"),
        )
        text = chance.choice(ways)
    return Mutant(text, site) if which else Mutant(run, text)


def _override(chance: random.Random) -> Mutant:
    words = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        name = chance.choice(_NAMES)
        if chance.random() < 0.2:
            name = _misspelt(name, chance)
        if chance.random() < 0.2:
            name = f"site.{chance.choice(['name', 'memory', 'setup', 'environment.A', 'mpi', 'x'])}"
        value = chance.choice([str(v)[:2000] for v in VALUES] + list(TEXTS))
        others = [name, f"={value}", f"{name}.x={value}"]
        words.append(chance.choice([f"{name}={value}"] * 8 + others))
    return Mutant(yaml.safe_dump(RUN), yaml.safe_dump(CPU_SITE), words)


def _option(chance: random.Random) -> Mutant:
    texts = [str(v)[:2000] for v in VALUES if v is not None]
    options: dict[str, str] = {}
    for _ in range(chance.choice([1, 2])):
        name = chance.choice(
            ["--config", "--cluster", "--nodes", "--time", "--account", "--partition", "--qos",
             "--resume-by", "--max-restarts", "--sweep", "--at-once"]
        )  # fmt: skip
        known = {"--nodes": NODES, "--time": TIMES, "--max-restarts": NODES, "--at-once": NODES}
        known["--sweep"] = ("seed=1,2", "seed=1,1", "seed", "x=1,2", "seed=a,b", "seed=1,,2")
        known["--config"] = known["--cluster"] = FILES
        options[name] = chance.choice([*known.get(name, ())] * 3 + texts)
    return Mutant(yaml.safe_dump(RUN), yaml.safe_dump(CPU_SITE), [], options)


def _include(chance: random.Random) -> Mutant:
    line = f"include: {chance.choice(INCLUDES)}\n"
    run, site = yaml.safe_dump(RUN), yaml.safe_dump(CPU_SITE)
    return Mutant(line + run, site) if chance.random() < 0.7 else Mutant(run, line + site)
