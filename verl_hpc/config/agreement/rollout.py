"""Checks of how responses are generated, scored and evaluated against the rest of a run."""

from __future__ import annotations

from verl_hpc.config.agreement import refuse
from verl_hpc.config.algorithm import ForwardKl
from verl_hpc.config.reward import is_called_by_the_rank
from verl_hpc.config.role import REWARD
from verl_hpc.config.roles import calls_reward, generates
from verl_hpc.config.rollout import HOTTEST_VLLM
from verl_hpc.config.sections import RunSections

_REPLAY_SETS = "router replay sets it: on on GPUs, off on CPU ranks"
_NOT_WITH_REPLAY = {
    "enable_prefix_caching": _REPLAY_SETS,
    "kv_transfer_config": "what another engine computed was routed there",
    "speculative_config": "its drafts are of other layers",
}
"""Options of vLLM that router replay excludes, each with the reason."""


def check_quantised(config: RunSections) -> None:
    """Raises: ValueError: a quantised rollout whose log-probs nothing corrects."""
    algorithm, rollout = config.algorithm, config.rollout
    by_teacher = config.recipe == "distillation" and isinstance(config.distillation, ForwardKl)
    alone = by_teacher and config.distillation.task_reward_weight == 0
    corrects = algorithm.correction is not None or rollout.verify.on_mismatch == "correct"
    if not config.samples_to_train or config.has_own_recipe or alone:
        return
    if corrects or algorithm.old_log_probs == "rollout":
        return
    name = "quantization" if rollout.quantization is not None else "kv_cache_dtype"
    raise ValueError(
        f"rollout.{name} = fp8 without algorithm.correction: tokens come from a coarser policy "
        "than the one that is trained, and nothing makes up for it; give algorithm.correction: {}, "
        "which is truncated importance sampling, or algorithm.old_log_probs: rollout"
    )


def check_router_replay(config: RunSections) -> None:
    """Raises: ValueError: the rollout has no experts to replay."""
    setting, rollout = "algorithm.router_replay = rollout", config.rollout
    if rollout.engine != "vllm":
        raise ValueError(
            f"{setting} with rollout.engine = {rollout.engine}, which does not tell where it "
            "routes tokens; choose vllm"
        )
    if rollout.pipeline_parallel > 1:
        raise ValueError(
            f"{setting} with rollout.pipeline_parallel = {rollout.pipeline_parallel}: vLLM gives "
            "the experts of engines with all layers on each rank; choose 1, and a larger "
            "rollout.tensor_parallel"
        )
    if rollout.on_interrupt == "keep":
        raise ValueError(
            f"{setting} with rollout.on_interrupt = keep: responses are kept without their "
            "experts; choose drop"
        )
    for name, reason in _NOT_WITH_REPLAY.items():
        option = {f"rollout.engine_options.{name}": name in rollout.engine_options}
        refuse(option, f" with {setting}: {reason}; leave it out")


def check_evaluation(config: RunSections) -> None:
    """Raises: ValueError: evaluation data are missing or given twice, or ask for what the recipe or
    the engine cannot do."""
    evaluation = config.evaluation
    if evaluation.sets and config.data.evaluation is not None:
        raise ValueError(
            f"data.evaluation and evaluation.sets ({', '.join(evaluation.sets)}) are both given; "
            "make data.evaluation one of the sets, the first if stop_at is about it"
        )
    if evaluation.answers_alone and config.compares_answers:
        raise ValueError(
            f"{evaluation.answers_alone} with recipe: {config.recipe}, which compares pairs; give "
            "them as data.evaluation, and leave this out"
        )
    if evaluation.wanted and not config.evaluation_sets:
        setting = "every > 0" if evaluation.every else "at_start"
        raise ValueError(f"evaluation.{setting} needs data.evaluation, or evaluation.sets")
    if evaluation.stop_at is not None and not evaluation.every:
        raise ValueError("evaluation.stop_at needs evaluation.every > 0")
    for name, chosen in evaluation.sets.items():
        if config.rollout.engine == "vllm" and chosen.chosen_temperature > HOTTEST_VLLM:
            raise ValueError(
                f"evaluation.sets.{name}.temperature = {chosen.chosen_temperature:g}: vLLM "
                f"samples up to {HOTTEST_VLLM:g}; lower it, or choose rollout.engine: hf"
            )


def check_reward_processes(config: RunSections) -> None:
    """Raises: ValueError: there is no function that they could call."""
    setting = f"runtime.reward_processes = {config.runtime.reward_processes}"
    to_train = calls_reward(config) or config.has_own_recipe
    if not generates(config) or not (to_train or config.evaluation.wanted):
        model = config.has_advantages and REWARD in config.roles
        what = "roles.reward, a model" if model else f"recipe: {config.recipe}"
        raise ValueError(f"{setting}: no reward function is called with {what}; leave it out")
    calls = config.reward_calls
    if all(is_called_by_the_rank(call.function) for call in calls.values()):
        name, call = next(iter(calls.items()))
        raise ValueError(
            f"{setting}: {name}.function = {call.function} is called by the rank, since it has "
            "many responses under way by itself; leave one of the two out"
        )


def check_generates_nothing(config: RunSections) -> None:
    """Raises: ValueError: a built-in recipe or an evaluation generates without an engine."""
    answers = (config.recipe == "sft" or bool(config.tasks)) and config.evaluation.wanted
    if answers or (config.samples_to_train and not config.has_own_recipe):
        what = "an evaluation" if answers else f"recipe: {config.recipe}"
        raise ValueError(f"rollout.engine = none, and {what} generates; choose vllm or hf")


def check_rollout_log_probs(config: RunSections) -> None:
    """Raises: ValueError: the rollout's log-probs are those that a correction would start from, or
    are of another distribution than the policy."""
    algorithm, correction = config.algorithm, "algorithm.correction"
    corrects = algorithm.correction is not None
    if config.rollout.verify.on_mismatch == "correct":
        corrects, correction = True, "rollout.verify.on_mismatch = correct"
    if corrects and algorithm.old_log_probs == "rollout":
        raise ValueError(
            f"{correction} with algorithm.old_log_probs = rollout: every weight is 1 where the "
            "ratio starts from the rollout's log-probs; choose auto, or do not correct"
        )
    given = [f"rollout.{n} = {v:g}" for n, v in config.rollout.filters.items()]
    given += ["rollout.structured"] if config.rollout.structured is not None else []
    if not given:
        return
    filters = ", ".join(given)
    why = "the rollout engine then has no log-probs of the policy that is trained"
    if algorithm.old_log_probs == "rollout":
        raise ValueError(f"algorithm.old_log_probs = rollout with {filters}: {why}; choose auto")
    if corrects:
        raise ValueError(
            f"{correction} with {filters}: {why}; do not correct, or leave the filters out"
        )


def check_structured(config: RunSections) -> None:
    """Raises: ValueError: a constraint with what continues a response, or with the proof that both
    engines compute the same."""
    rollout, setting = config.rollout, "rollout.structured"
    if rollout.engine != "vllm":
        raise ValueError(f"{setting} with rollout.engine = {rollout.engine}; choose vllm")
    refuse(
        {
            "rollout.on_interrupt = keep": rollout.on_interrupt == "keep",
            f"rollout.staleness = {rollout.staleness}": rollout.staleness > 1,
            "rollout.environment": rollout.environment is not None,
        },
        f" with {setting}: responses are continued, and a constraint would begin anew in the "
        "middle; leave one of the two out",
    )
    if rollout.verify.probe and config.samples_to_train and not config.has_own_recipe:
        raise ValueError(
            f"rollout.verify.probe = true with {setting}: vLLM's log-probs are of the allowed "
            "tokens alone, and the trainer's of all, so they differ; set rollout.verify.probe: "
            "false (checksums still prove that weights arrived)"
        )


def check_batch_invariant(config: RunSections) -> None:
    """Raises: ValueError: rollout.batch_invariant with a setting under which rollout and training
    compute otherwise."""
    rollout, parallel, model = config.rollout, config.parallel, config.model
    refuse(
        {
            f"rollout.engine = {rollout.engine}": rollout.engine != "vllm",
            f"parallel.engine = {parallel.engine}": parallel.engine != "megatron",
            f"parallel.context_parallel = {parallel.context_parallel}": parallel.context_parallel
            > 1,
            f"model.dtype = {model.dtype}": model.dtype != "float32",
            f"rollout.dtype = {rollout.dtype}": rollout.dtype == "bfloat16",
            f"rollout.kv_cache_dtype = {rollout.kv_cache_dtype}": rollout.kv_cache_dtype == "fp8",
            "lora": config.lora is not None,
            "rollout.structured": rollout.structured is not None,
            **{f"rollout.{n} = {v:g}": True for n, v in rollout.filters.items()},
            "rollout.engine_options.compilation_config": "compilation_config"
            in rollout.engine_options,
        },
        " with rollout.batch_invariant: vLLM and Megatron-core give the same bits for dense models "
        "in float32, of the whole distribution; change it, or leave rollout.batch_invariant out",
    )
    sizes = parallel.tensor_parallel, rollout.tensor_parallel
    if sizes not in ((1, 1), (2, 2)):
        raise ValueError(
            f"parallel.tensor_parallel = {sizes[0]} and rollout.tensor_parallel = {sizes[1]} with "
            "rollout.batch_invariant: sums over ranks have the same bits for two ranks in any "
            "order, not for more, and not for other parts; choose 1 for both, or 2"
        )


def check_program(config: RunSections) -> None:
    """Raises: ValueError: rollout.program with a setting that excludes it."""
    rollout = config.rollout
    refuse(
        {
            f"rollout.engine = {rollout.engine}": rollout.engine != "vllm",
            "rollout.environment": rollout.environment is not None,
            "rollout.structured": rollout.structured is not None,
            f"batch.refill_rounds = {config.batch.refill_rounds}": config.batch.refill_rounds > 0,
        },
        " with rollout.program: vLLM generates a program's conversations, as many as it has; leave "
        "one of the two out",
    )
    assert rollout.program is not None
    if rollout.program.max_rows > 1:
        refuse(
            {
                f"rollout.staleness = {rollout.staleness}": rollout.staleness > 0,
                f"batch.spare_prompts = {config.batch.spare_prompts}": (
                    config.batch.spare_prompts > 0
                ),
            },
            " with rollout.program.max_rows above 1: the rows of a program end together, those of "
            "a prompt that is left to a later step with the others; set max_rows: 1, or leave it "
            "out",
        )


def check_spare_prompts(config: RunSections) -> None:
    """Raises: ValueError: batch.spare_prompts with a setting that excludes it."""
    advantage, rollout = config.algorithm.advantage, config.rollout
    refuse(
        {
            f"recipe: {config.recipe}": not config.samples_to_train,
            f"batch.refill_rounds = {config.batch.refill_rounds}": config.batch.refill_rounds > 0,
            "rollout.balance = stealing": rollout.balance == "stealing",
            f"algorithm.advantage.name = {advantage.name}": "greedy" in advantage.needs,
        },
        f" with batch.spare_prompts = {config.batch.spare_prompts}: each engine asks its part of "
        "a step's prompts, and takes those whose responses are finished first; leave one of the "
        "two out",
    )


def check_refill(config: RunSections) -> None:
    """Raises: ValueError: batch.refill_rounds with a setting that excludes it."""
    algorithm, rollout = config.algorithm, config.rollout
    against = {
        "algorithm.drop_equal_groups = false": not algorithm.drop_equal_groups,
        f"recipe: {config.recipe}": config.recipe != "rl",
        f"rollout.staleness = {rollout.staleness}": rollout.staleness > 0,
        f"rollout.on_interrupt = {rollout.on_interrupt}": rollout.on_interrupt == "keep",
        "roles.reward, a model": REWARD in config.roles,
        "placement.reward": REWARD in config.placement,
        f"algorithm.advantage.name = {algorithm.advantage.name}": "greedy"
        in algorithm.advantage.needs,
        f"rollout.num_samples = {rollout.num_samples}": rollout.num_samples < 2,
    }
    setting = f"batch.refill_rounds = {config.batch.refill_rounds}"
    refuse(
        {f"{setting} with {other}": is_given for other, is_given in against.items()},
        ": prompts are asked, and scored by the reward function, where responses are generated, "
        "and groups of equal scores are left out; leave one of the two out",
    )
