"""The command line: one verb a module, imported only when it is called.

`python -m verl_hpc VERB ...`. A verb's module offers `add_arguments(parser)` and
`run(arguments) -> int`; and `plain_words(words)` if words change before they are parsed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from verl_hpc.cli.output import OutputError, ReaderLeft, standard_output
from verl_hpc.errors import ConfigError, VerlHpcError
from verl_hpc.package import VERSION

VERBS = {
    "plan": "will it fit, how long will it take, how many GPUs, which layout; needs no GPU",
    "submit": "submit a configuration to Slurm, or show what would be submitted",
    "doctor": "check a cluster before a run waits for it: login node, nodes, network, disks",
    "train": "run a configuration on the MPI ranks this is started on",
    "status": "what a run does now: state, step, pace, rewards, time to go",
    "list": "one line for each run, newest first",
    "hang": "where every rank is: stacks of all of them, the late ones first",
    "attach": "start a debugger in one rank, and say how to connect to it",
    "logs": "what the ranks said, or the first failure among them",
    "dashboard": "a web page on this machine that shows runs while they run",
    "stop": "ask a run to save and stop for good",
    "save": "ask a run to save a checkpoint and continue",
    "fetch": "download models into the cache that runs read, on a node with network",
    "export": "write a checkpoint as a Hugging Face directory",
    "import": "write a Hugging Face directory as a checkpoint",
    "report": "write a run's report.html again; or compare runs of several sizes",
    "reproduce": "run published results of other programs, and compare ours with theirs",
    "budget": "what an account and runs have used: hours, waiting, lost work, energy, CO2",
    "comm": "time collectives and messages between ranks, beside MPI's",
    "generations": "read the answers that a run's evaluations have saved",
    "overlap": "count the prompts of evaluation that occur in training as well",
    "migrate": "show a verl command line, script or YAML file as a run's file of ours",
    "config": "what settings there are, what they mean, what they may be; or a file's, resolved",
    "reshard": "count what moving weights between two layouts costs; needs no GPU",
}
ON_AND_ON = ("generations", "logs", "status")
"""Verbs that only print, much or without end: they stop when their reader leaves, or at Ctrl-C. All
others finish their work, whoever reads."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit status: 0 done, 1 a `VerlHpcError`, 2 bad usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    ends = bool(words) and words[0] in ON_AND_ON
    try:
        with standard_output(ends):
            return _run(words)
    except ReaderLeft:
        return 0
    except KeyboardInterrupt:
        if not ends:
            raise
        return 0
    except OutputError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _run(words: Sequence[str]) -> int:
    verb = words[0] if words else "help"
    if verb in ("--version", "-V", "version"):
        print(f"verl_hpc {VERSION}")
        return 0
    if verb in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if verb not in VERBS:
        from verl_hpc.config.explain import near_or_all

        print(f"unknown verb {verb!r}; {near_or_all(verb, VERBS, 'verbs')}", file=sys.stderr)
        return 2
    # `import` is a keyword.
    module = importlib.import_module(f"verl_hpc.cli.{verb.replace('import', 'import_model')}")
    parser = argparse.ArgumentParser(
        prog=f"python -m verl_hpc {verb}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    rest = words[1:]
    if hasattr(module, "plain_words"):  # of a verb that reads another program's options
        try:
            rest = module.plain_words(rest)
        except VerlHpcError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 2
    # Overrides may be placed between options.
    arguments = parser.parse_intermixed_args(rest)
    try:
        return int(module.run(arguments) or 0)
    except VerlHpcError as error:
        print(f"{type(error).__name__}: {_told(error)}", file=sys.stderr)
        return 1


def _told(error: VerlHpcError) -> str:
    if not isinstance(error, ConfigError):
        return str(error)
    from verl_hpc.migration.hints import with_verls_names

    return with_verls_names(str(error))


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {text}" for name, text in VERBS.items()]
    usage = "usage: python -m verl_hpc VERB ...   (VERB --help says more; --version)"
    return "\n".join([usage, "", *lines])


if __name__ == "__main__":
    sys.exit(main())
