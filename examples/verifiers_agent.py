"""Environments of the package `verifiers` (0.4 or later), unmodified, as programs of a run.

The Python that runs it has verifiers and the environment; docs/agents.md says how a run names it.

    python verifiers_agent.py ENVIRONMENT             play the rows that the run gives it
    python verifiers_agent.py ENVIRONMENT --write FILE [--first N] [--num N]
                                                      write tasks as rows of a run's data

ENVIRONMENT is the name of a taskset, or JSON of what verifiers calls `env`, such as
{"taskset": {"id": "textarena", "game": "Hangman-v0"}}. A seat whose program verifiers would start
as another process talks to the model from this one, with the tools of its task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.configs.agent import AgentConfig, agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["InProcess"]


class InProcess(vf.Harness[vf.HarnessConfig]):
    """Asks the model for turns, and does the calls of tools, until a turn calls none."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx: Any, *given: Any, **_: Any) -> vf.ProgramResult:
        """Take the model's turns up to one that calls no tool; see vf.Harness."""
        _, _, endpoint, secret, mcp_urls, data = given
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += map(message_to_wire, prompt or ())
        servers = {name: {"url": url} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None, max_retries=0)
            )
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            while True:
                reply = await client.chat.completions.create(
                    model=ctx.model, messages=messages, **({"tools": tools} if tools else {})
                )
                message: Any = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return vf.ProgramResult(0, "", "")
                for call in message.tool_calls:
                    told = await _called(call.function, dispatch, connections)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": told})


async def _called(function: Any, dispatch: Mapping[str, Any], connections: Any) -> Any:
    """Return what a tool says, or what is wrong with the call."""
    if function.name not in dispatch:
        return f"error: unknown tool {function.name!r}"
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON ({error})"
    return await call_mcp(connections, dispatch, function.name, arguments)


def environment_of(named: str) -> vf.Env:
    """Return an environment, whose seats run in this process where neither it nor the caller says
    otherwise."""
    given = json.loads(named) if named.startswith("{") else {"taskset": {"id": named}}
    config = vf.resolve_env_config(given)
    own = vf.default_harness_id(config.taskset.id) == config.taskset.id
    for seat, chosen in agent_config_fields(config).items():
        words = dict(given.get(seat, {}))
        if chosen.harness is None and not own:
            words["harness"] = {"id": Path(__file__).stem}
        if chosen.runtime == AgentConfig().runtime:
            words["runtime"] = {"type": "subprocess"}
        given = {**given, seat: words}
    return vf.load_environment(vf.resolve_env_config(given))


def row_of(task: vf.Task, source: str) -> dict[str, Any]:
    """Return a task as a row of a run's data."""
    data = task.data.model_dump(mode="json", exclude_none=True)
    said = data.get("prompt") or data.get("name") or source  # an environment may speak first
    prompt = [{"role": "user", "content": said}] if isinstance(said, str) else said
    if "system_prompt" in data:
        prompt = [{"role": "system", "content": data["system_prompt"]}, *prompt]
    return {"prompt": prompt, "data_source": source, "answer": "", "extra_info": {"task": data}}


async def play(environment: vf.Env, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Play all rows at the same time; return their scores, None where one could not be played."""
    kind = type(environment.taskset).task_type()
    data_kind, config = kind.data_type(), environment.taskset.config.task

    async def one(row: Mapping[str, Any], number: int) -> float | None:
        key = f"ROW_{number}_API_KEY"
        os.environ[key] = row.get("key", os.environ["OPENAI_API_KEY"])
        client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var=key)
        task = kind(data_kind.model_validate(row["extra_info"]["task"]), config)
        episode = await environment.run_episode(task, vf.ModelContext("policy", client))
        if episode.ok:
            return float(sum(trace.reward for trace in episode.traces))
        errors = [*episode.errors, *(e for trace in episode.traces for e in trace.errors)]
        print(*(f"{e.type}: {e.message}" for e in errors), sep="\n", file=sys.stderr)
        return None

    async with environment.serving():
        return await asyncio.gather(*(one(row, i) for i, row in enumerate(rows)))


def main() -> int:
    """Play rows, or write some."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environment")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--num", type=int, default=1000)
    given = parser.parse_args()
    environment = environment_of(given.environment)
    if given.write:
        source = environment.config.env_id
        with given.write.open("x") as file:
            for task in islice(environment.taskset, given.first, given.first + given.num):
                file.write(json.dumps(row_of(task, source)) + "\n")
        return 0
    rows = json.loads(Path(os.environ["VERL_HPC_ROW"]).read_text())
    scores = asyncio.run(play(environment, rows if isinstance(rows, list) else [rows]))
    written = scores if isinstance(rows, list) else scores[0]
    Path(os.environ["VERL_HPC_SCORE"]).write_text(json.dumps(written))
    return int(None in scores)


if __name__ == "__main__":
    sys.exit(main())
