"""An agent of the public package `openai`: the model looks names up by calls of a tool.

A run starts it once for up to `rollout.program.max_rows` responses, since importing openai takes
longer than an answer. "2 steps from qm" asks for what the name that qm leads to leads to: only the
tool knows where names lead. The score is 1 for a right answer.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

MOST_TURNS = 5
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Says where a name leads.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
}


def looked_up(arguments: str, links: Mapping[str, str]) -> str:
    """Return what the tool says to a call."""
    try:
        return links.get(json.loads(arguments)["name"], "nowhere")
    except (ValueError, LookupError, TypeError):
        return "nowhere"


async def score_of(row: Mapping[str, Any]) -> float:
    """Converse about a row, and return its score."""
    said: list[Any] = [{"role": "user", "content": row["prompt"][-1]["content"]}]
    async with AsyncOpenAI(api_key=row["key"]) as model:
        for _ in range(MOST_TURNS):
            reply = await model.chat.completions.create(model="policy", messages=said, tools=[TOOL])
            message: Any = reply.choices[0].message
            if not message.tool_calls:
                return float((message.content or "").strip() == row["ground_truth"])
            said.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                told = looked_up(call.function.arguments, row["extra_info"]["links"])
                said.append({"role": "tool", "tool_call_id": call.id, "content": told})
    return 0.0


async def main() -> None:
    """Converse about all rows at the same time, and write their scores."""
    rows = json.loads(Path(os.environ["VERL_HPC_ROW"]).read_text())
    scores = await asyncio.gather(*map(score_of, rows))
    Path(os.environ["VERL_HPC_SCORE"]).write_text(json.dumps(scores))


if __name__ == "__main__":
    asyncio.run(main())
