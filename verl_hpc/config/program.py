"""Settings of programs that speak to the model through an endpoint of their node."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from verl_hpc.section import Number, PathText, Positive, Seconds, Section

Gibibytes = Annotated[Number, Field(gt=0.0, le=1000.0)]


class ScoreConfig(Section):
    """A command that scores what a program of status 0 has left in its home, after its end and in
    another sandbox. The program's own row then has no ground_truth."""

    command: Annotated[list[str], Field(min_length=1)]
    """The command and its arguments, which writes the score into the file of VERL_HPC_SCORE."""
    directory: PathText | None = None
    """Directory of its own files, which the program does not see, and where it starts."""


class ProgramConfig(Section):
    """A program of your own, started once for each response, which asks the model for turns by
    OpenAI's or Anthropic's protocol (docs/agents.md)."""

    command: Annotated[list[str], Field(min_length=1)]
    """The program and its arguments, without a shell: [python, agent.py]. OPENAI_BASE_URL and
    OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, name the endpoint; the file of
    VERL_HPC_ROW has the row, and the file of VERL_HPC_SCORE takes the score."""
    directory: PathText | None = None
    """Directory of the program's own files, which it may read, and where it starts."""
    paths: list[PathText] = []
    """Further directories that it may read under bubblewrap. A virtual environment among them or in
    `directory`, and the one of `command`, come with the interpreter that they were made by."""
    score: ScoreConfig | None = None
    """What scores a program instead of itself."""
    image: PathText | None = None
    """Files that it sees under bubblewrap instead of the node's: their root directory, a .sif of
    Apptainer or a .sqsh of Enroot, which is unpacked once a node, in TMPDIR."""
    sandbox: Literal["bubblewrap", "none"] = "bubblewrap"
    """bubblewrap gives it namespaces of its own and a home in memory; none contains nothing but its
    processes."""
    network: Literal["none", "node"] = "none"
    """none leaves it the model's endpoint alone; node leaves it the node's network, as it has to be
    with sandbox: none."""
    max_turns: Positive = 64
    """Most turns of the model for one row, those of all its conversations together."""
    max_rows: Positive = 1
    """Rows of one program: above 1 for programs that take long to start. The file of VERL_HPC_ROW
    then has a list of at most so many rows, each with the `key` of its conversations at the
    endpoint, and the file of VERL_HPC_SCORE takes a list of scores."""
    max_programs: Positive = 128
    """Programs of one engine at a time; others wait."""
    timeout_s: Seconds = 600.0
    """Longest that a program may run."""
    memory_gib: Gibibytes = 2.0
    """Most resident memory of a program's processes together."""
    cpus: Positive | None = None
    """Processors that each program may use; null is all of its rank's."""
    max_processes: Positive = 256
    """Most processes and threads of a program at a time."""
    files_mib: Positive = 256
    """Largest file that it may write, and under bubblewrap the size of its home."""
    tool_parser: str | None = None
    """vLLM's parser of the model's tool calls, such as hermes; null leaves calls in the text."""
    reasoning_parser: str | None = None
    """vLLM's parser of the model's thoughts, such as qwen3; null leaves them in the text."""
    on_error: Literal["stop", "end"] = "stop"
    """Effect of a program that fails, or writes no score that reward.function: program needs: end
    the run, or keep what it did and count it, with a score of 0 where it wrote none."""

    @field_validator("sandbox", mode="before")
    @classmethod
    def _images_need_no_program_of_theirs(cls, value: object) -> object:
        if value in ("apptainer", "enroot"):
            raise ValueError(
                f"{value} is not needed to enter an image; write sandbox: bubblewrap, and in image "
                "the path of the .sif, the .sqsh or the directory"
            )
        return value

    @model_validator(mode="after")
    def _image_is_entered(self) -> ProgramConfig:
        if self.sandbox == "none" and self.image is not None:
            raise ValueError(
                f"image = {self.image} with sandbox = none, which enters none; set sandbox: "
                "bubblewrap"
            )
        return self

    @model_validator(mode="after")
    def _scores_its_rows_itself(self) -> ProgramConfig:
        if self.max_rows > 1 and self.score is not None:
            raise ValueError(
                f"max_rows = {self.max_rows} with score, which scores a program of one row; leave "
                "one of them out"
            )
        return self

    @model_validator(mode="after")
    def _network_is_closed_by_a_sandbox(self) -> ProgramConfig:
        if self.sandbox == "none" and self.network == "none":
            raise ValueError(
                "network = none with sandbox = none, which closes no network; set network: node, "
                "or sandbox: bubblewrap"
            )
        return self
