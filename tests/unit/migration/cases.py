"""For every key that is honoured: a value that is not verl's default, and what it comes to."""

from verl_hpc.migration.reference import FORMS, reference

ACTOR, REF, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
FSDP = {ACTOR: f"{ACTOR}.fsdp_config", REF: f"{REF}.fsdp_config", CRITIC: "critic.fsdp"}
ROLES = {ACTOR: "", REF: "roles.reference.", CRITIC: "roles.critic."}
CORRECTION = "algorithm.rollout_correction"
OVERRIDES = f"{ACTOR}.megatron.override_transformer_config"
GRPO = {"algorithm.adv_estimator": "grpo", f"{ROLLOUT}.n": 4}
KL_LOSS = {f"{ACTOR}.use_kl_loss": True}
KL_REWARD = {"algorithm.use_kl_in_reward": True}
ADAPTIVE = {**KL_REWARD, "algorithm.kl_ctrl.type": "adaptive"}
SAMPLED = {f"{ROLLOUT}.val_kwargs.do_sample": True, f"{ROLLOUT}.val_kwargs.temperature": 0.8}
NO_CRITIC = GRPO
VALIDATION = "evaluation.sets.validation"
TP2 = {f"{model}.megatron.tensor_model_parallel_size": 2 for model in (ACTOR, CRITIC)}
PP2 = {f"{model}.megatron.pipeline_model_parallel_size": 2 for model in (ACTOR, CRITIC)}
BASE = {
    f"{MODEL}.path": "model",
    "data.train_files": "train.parquet",
    "data.val_files": "test.parquet",
    "trainer.total_training_steps": 10,
}
"""What every run needs."""


def forms_of(key):
    """Of verl's two trees, those that have a key; where neither lists it, the one by its name."""
    forms = [form for form in FORMS if key in reference().forms[form]]
    return forms or ["megatron" if "megatron" in key else "fsdp"]


def other(value):
    """Of the same type, and not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    return {list: ["other"], dict: {"other": 1}}.get(type(value), "other")


class Case:
    def __init__(self, key, value, ours, expected=..., **more):
        self.key, self.value, self.ours = key, value, ours
        self.expected = value if expected is ... else expected
        self.beside = more.get("beside", {})
        in_megatron = ".lora." in key or any(".megatron." in name for name in self.beside)
        self.forms = ["megatron"] if in_megatron else forms_of(key)

    def __repr__(self):
        return f"{self.key}={self.value}"


def _losses():
    policy = f"{ACTOR}.policy_loss"
    mode = f"{policy}.loss_mode"
    loss = "algorithm.loss"
    yield Case(mode, "geo_mean", f"{loss}.name", "gmpo")
    yield Case(f"{ACTOR}.clip_ratio", 0.3, f"{loss}.clip_low")
    yield Case(f"{ACTOR}.clip_ratio", 0.3, f"{loss}.clip_high")
    yield Case(f"{ACTOR}.clip_ratio", 0.3, f"{loss}.threshold", beside={mode: "dppo_kl"})
    yield Case(f"{ACTOR}.clip_ratio_low", 0.1, f"{loss}.clip_low")
    yield Case(f"{ACTOR}.clip_ratio_high", 0.28, f"{loss}.clip_high")
    yield Case(f"{ACTOR}.clip_ratio_c", 5.0, f"{loss}.dual_clip")
    yield Case(f"{ACTOR}.clip_ratio_c", 5.0, f"{loss}.max_ratio", beside={mode: "dppo_tv"})
    yield Case(f"{ACTOR}.tau_pos", 1.1, f"{loss}.tau_positive", beside={mode: "sapo"})
    yield Case(f"{ACTOR}.tau_neg", 1.2, f"{loss}.tau_negative", beside={mode: "sapo"})
    yield Case(f"{policy}.clip_cov_ratio", 0.01, f"{loss}.share", beside={mode: "clip_cov"})
    yield Case(f"{policy}.clip_cov_lb", 2.0, f"{loss}.lower", beside={mode: "clip_cov"})
    yield Case(f"{policy}.clip_cov_ub", 6.0, f"{loss}.upper", beside={mode: "clip_cov"})
    yield Case(f"{policy}.kl_cov_ratio", 0.01, f"{loss}.share", beside={mode: "kl_cov"})
    yield Case(f"{policy}.dro_beta", 0.5, f"{loss}.beta", beside={mode: "dro"})
    yield Case(f"{policy}.ppo_kl_coef", 0.5, f"{loss}.coefficient", beside={mode: "kl_cov"})
    mean = "seq-mean-token-mean"
    norm = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"}
    yield Case(f"{ACTOR}.loss_agg_mode", mean, "algorithm.aggregation")
    scale = f"{ACTOR}.loss_scale_factor"
    yield Case(scale, 100.0, "algorithm.loss_scale", beside=norm)
    yield Case(f"{ACTOR}.entropy_coeff", 0.001, "algorithm.entropy_coefficient")


def _divergences():
    kl = "algorithm.kl"
    yield Case(f"{ACTOR}.use_kl_loss", True, f"{kl}.placement", "loss")
    yield Case("algorithm.use_kl_in_reward", True, f"{kl}.placement", "reward")
    yield Case(f"{ACTOR}.kl_loss_coef", 0.02, f"{kl}.coefficient", beside=KL_LOSS)
    yield Case(f"{ACTOR}.kl_loss_type", "mse", f"{kl}.estimator", "k2", beside=KL_LOSS)
    yield Case(f"{ACTOR}.kl_loss_type", "k1", f"{kl}.allow_biased", True, beside=KL_LOSS)
    yield Case("algorithm.kl_penalty", "low_var_kl", f"{kl}.estimator", "k3", beside=KL_REWARD)
    yield Case("algorithm.kl_penalty", "abs", f"{kl}.allow_biased", True, beside=KL_REWARD)
    yield Case("algorithm.kl_ctrl.kl_coef", 0.02, f"{kl}.coefficient", beside=KL_REWARD)
    yield Case("algorithm.kl_ctrl.type", "adaptive", f"{kl}.controller", beside=KL_REWARD)
    yield Case("algorithm.kl_ctrl.target_kl", 0.3, f"{kl}.target", beside=ADAPTIVE)
    yield Case("algorithm.kl_ctrl.horizon", 500, f"{kl}.horizon", beside=ADAPTIVE)


def _advantages():
    advantage, ours = "algorithm.advantage", "algorithm.correction"
    yield Case(
        "algorithm.adv_estimator",
        "rloo_vectorized",
        f"{advantage}.name",
        "rloo",
        beside={f"{ROLLOUT}.n": 2},
    )
    yield Case("algorithm.gamma", 0.9, f"{advantage}.gamma")
    yield Case("algorithm.lam", 0.95, f"{advantage}.lam")
    yield Case("algorithm.norm_adv_by_std_in_grpo", False, f"{advantage}.std", "none", beside=GRPO)
    parts = "algorithm.gdpo_reward_keys"
    of_parts = GRPO | {"algorithm.adv_estimator": "gdpo"}
    yield Case(parts, ["form", "right"], f"{advantage}.rewards", beside=of_parts)
    yield Case(
        "algorithm.gdpo_reward_weights",
        [1.0, 2.0],
        f"{advantage}.weights",
        beside=of_parts | {parts: ["form", "right"]},
    )
    groups = "algorithm.filter_groups"
    on = {**GRPO, f"{groups}.enable": True}
    yield Case(f"{groups}.enable", True, "algorithm.drop_equal_groups", beside=GRPO)
    yield Case(f"{groups}.max_num_gen_batches", 10, "batch.refill_rounds", 9, beside=on)
    weighed = {f"{CORRECTION}.rollout_is": "token"}
    yield Case(f"{CORRECTION}.rollout_is", "sequence", f"{ours}.weights")
    threshold = f"{CORRECTION}.rollout_is_threshold"
    yield Case(threshold, 5.0, f"{ours}.upper", beside=weighed)
    yield Case(threshold, "0.5_5.0", f"{ours}.lower", 0.5, beside=weighed)
    yield Case(
        f"{CORRECTION}.rollout_is_batch_normalize", True, f"{ours}.normalise", beside=weighed
    )
    bounds = {f"{CORRECTION}.rollout_rs_threshold": "0.5_2.0"}
    yield Case(
        f"{CORRECTION}.rollout_rs", "seq_sum_k1", f"{ours}.reject.ratio", "product", beside=bounds
    )
    for side, bound in (("lower", 0.25), ("upper", 2.0)):
        yield Case(
            f"{CORRECTION}.rollout_rs_threshold",
            "0.5_4.0",  # of the inverse ratio
            f"{ours}.reject.{side}",
            bound,
            beside={f"{CORRECTION}.rollout_rs": "seq_mean_k1"},
        )
    yield Case(f"{CORRECTION}.bypass_mode", True, "algorithm.old_log_probs", "rollout")


def _batches():
    yield Case(f"{ACTOR}.ppo_mini_batch_size", 512, "batch.mini_batches", 2)
    yield Case(f"{ACTOR}.ppo_epochs", 3, "batch.update_epochs")
    yield Case(f"{ACTOR}.shuffle", True, "batch.shuffle_mini_batches", "samples")
    tokens = "batch.max_tokens_per_micro_batch"
    actor = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 20}
    for section, name, dynamic, limit in (
        (ACTOR, "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"),
        (CRITIC, "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"),
        (CRITIC, "forward_micro_batch_size_per_gpu", "", "forward_max_token_len_per_gpu"),
        *(
            (
                s,
                "log_prob_micro_batch_size_per_gpu",
                "log_prob_use_dynamic_bsz",
                "log_prob_max_token_len_per_gpu",
            )
            for s in (REF, ROLLOUT)
        ),
    ):
        # 512 tokens of a prompt and as many of a response, a sequence
        yield Case(f"{section}.{name}", 4, tokens, 4096, beside=actor if section != ACTOR else {})
        on = {f"{section}.{dynamic or 'use_dynamic_bsz'}": True}
        yield Case(f"{section}.{limit}", 4000, tokens, beside=on)
        if dynamic:
            size = {f"{section}.{limit}": 2000}
            yield Case(f"{section}.{dynamic}", True, tokens, 2000, beside=size)


def _optimizers():
    for model, ours in ((ACTOR, "optimizer"), (CRITIC, "roles.critic.optimizer")):
        section = f"{model}.optim"
        yield Case(f"{section}.lr", 3e-6, f"{ours}.lr")
        yield Case(f"{section}.weight_decay", 0.1, f"{ours}.weight_decay")
        yield Case(f"{section}.betas", [0.8, 0.9], f"{ours}.beta2", 0.9)
        yield Case(f"{section}.betas", [0.8, 0.9], f"{ours}.beta1", 0.8)
        yield Case(f"{section}.clip_grad", 0.5, f"{ours}.clip_grad")
        yield Case(f"{model}.grad_clip", 0.5, f"{ours}.clip_grad")
        yield Case(f"{section}.override_optimizer_config", {"eps": 1e-5}, f"{ours}.epsilon", 1e-5)
        yield Case(f"{section}.override_optimizer_config.eps", 1e-5, f"{ours}.epsilon")
        # four optimizer steps in each of the trainer's ten
        yield Case(f"{section}.lr_warmup_steps", 3, f"{ours}.warmup_steps", 12)
        yield Case(f"{section}.lr_warmup_steps_ratio", 0.2, f"{ours}.warmup_steps", 8)
        yield Case(f"{section}.lr_decay_steps", 9, f"{ours}.decay_steps", 36)
        yield Case(f"{section}.lr_scheduler_type", "cosine", f"{ours}.schedule")
        yield Case(f"{section}.warmup_style", "cosine", f"{ours}.schedule")
        yield Case(f"{section}.lr_decay_style", "linear", f"{ours}.schedule")
        yield Case(
            f"{section}.min_lr_ratio", 0.5, f"{ours}.min_lr", 5e-7, beside={f"{section}.lr": 1e-6}
        )
        yield Case(f"{section}.min_lr", 1e-7, f"{ours}.min_lr")


def _layouts():
    for model, role in ROLES.items():
        beside = KL_LOSS if model == REF else {}
        parallel, megatron, fsdp = f"{role}parallel", f"{model}.megatron", FSDP[model]
        sizes = {
            "tensor_model_parallel_size": "tensor_parallel",
            "pipeline_model_parallel_size": "pipeline_parallel",
            "context_parallel_size": "context_parallel",
            "expert_model_parallel_size": "expert_parallel",
            "expert_tensor_parallel_size": "expert_tensor_parallel",
        }
        for theirs, ours in sizes.items():
            yield Case(f"{megatron}.{theirs}", 4, f"{parallel}.{ours}", beside=beside)
        yield Case(
            f"{megatron}.virtual_pipeline_model_parallel_size",
            2,
            f"{parallel}.virtual_pipeline",
            beside={**beside, f"{megatron}.pipeline_model_parallel_size": 2},
        )
        other = {**beside, f"{megatron}.tensor_model_parallel_size": 2}
        yield Case(
            f"{megatron}.sequence_parallel", False, f"{parallel}.sequence_parallel", beside=other
        )
        dtype = f"{role}dtype" if role else "model.dtype"
        for section in (megatron, fsdp):
            yield Case(f"{section}.dtype", "float32", dtype, beside=beside)
            yield Case(f"{section}.seed", 7, "seed")
        for section in (model, fsdp):
            yield Case(
                f"{section}.ulysses_sequence_parallel_size",
                2,
                f"{parallel}.context_parallel",
                beside=beside,
            )
        if model == REF:
            continue
        again = f"{megatron}.override_transformer_config.recompute_"
        full = {f"{again}granularity": "full"}
        yield Case(f"{again}granularity", "full", f"{parallel}.recompute")
        yield Case(f"{again}method", "block", f"{parallel}.recompute_method", beside=full)
        yield Case(f"{again}num_layers", 2, f"{parallel}.recompute_num_layers", beside=full)
        yield Case(
            f"{again}modules",
            ["mlp"],
            f"{parallel}.recompute_modules",
            beside={f"{again}granularity": "selective"},
        )
        for theirs, ours in (("param_offload", "parameters"), ("optimizer_offload", "optimizer")):
            for section in (megatron, fsdp):
                yield Case(f"{section}.{theirs}", True, f"{role}offload.{ours}")
        yield Case(f"{megatron}.grad_offload", True, f"{role}offload.gradients")
        weights = "critic.model" if model == CRITIC else MODEL
        off = {f"{MODEL}.enable_gradient_checkpointing": True}
        yield Case(
            f"{weights}.enable_gradient_checkpointing",
            False,
            f"{parallel}.recompute",
            "none",
            beside=off if model == CRITIC else {},
        )
        yield Case(f"{weights}.enable_activation_offload", True, f"{parallel}.offload_activations")
        yield from _adapters(weights, f"{role}lora")
    yield from _engines()
    switch = f"{ROLLOUT}.enable_rollout_routing_replay"
    mode = f"{ACTOR}.router_replay.mode"
    yield Case(mode, "R3", "algorithm.router_replay", "rollout", beside={switch: True})
    yield Case(switch, True, "algorithm.router_replay", "rollout", beside={mode: "R3"})


def _engines():
    yield Case(f"{ACTOR}.strategy", "megatron", "parallel.engine")
    yield Case("critic.strategy", "megatron", "roles.critic.parallel.engine")
    yield Case(f"{REF}.strategy", "megatron", "roles.reference.parallel.engine", beside=KL_LOSS)
    for model, parallel in ((ACTOR, "parallel"), (CRITIC, "roles.critic.parallel")):
        fsdp, ours = FSDP[model], f"{parallel}.fsdp"
        sums = f"{ours}.reduce_dtype"
        precision = f"{fsdp}.mixed_precision"
        yield Case(f"{fsdp}.reshard_after_forward", False, f"{ours}.reshard_after_forward")
        yield Case(f"{precision}.reduce_dtype", "bf16", sums, "bfloat16")
        yield Case(precision, {"reduce_dtype": "bf16"}, sums, "bfloat16")
        yield Case(f"{fsdp}.forward_prefetch", True, f"{ours}.forward_prefetch")
        liger = f"{'critic' if model == CRITIC else 'actor_rollout_ref'}.model.use_liger"
        yield Case(liger, False, f"{ours}.kernels", "flash_attention")
        half = {"trainer.n_gpus_per_node": 16}
        yield Case(f"{fsdp}.fsdp_size", 8, f"{ours}.shard_size", beside=half)
    for model, role in ROLES.items():
        beside = KL_LOSS if model == REF else {}
        key, dtype = f"{FSDP[model]}.mixed_precision.param_dtype", f"{role or 'model.'}dtype"
        yield Case(key, "fp32", dtype, "float32", beside=beside)


def _adapters(section, ours):
    older, newer = {f"{section}.lora_rank": 8}, {f"{section}.lora.rank": 8}
    yield Case(f"{section}.lora_rank", 8, f"{ours}.rank")
    yield Case(f"{section}.lora_alpha", 64, f"{ours}.alpha", 64.0, beside=older)
    yield Case(f"{section}.target_modules", ["q_proj"], f"{ours}.target_modules", beside=older)
    yield Case(f"{section}.lora_adapter_path", "a", f"{ours}.path", beside=older)
    yield Case(f"{section}.lora.rank", 8, f"{ours}.rank")
    yield Case(f"{section}.lora.alpha", 64, f"{ours}.alpha", 64.0, beside=newer)
    yield Case(f"{section}.lora.adapter_path", "a", f"{ours}.path", beside=newer)
    yield Case(
        f"{section}.lora.target_modules",
        ["linear_qkv", "linear_fc2"],
        f"{ours}.target_modules",
        ["q_proj", "k_proj", "v_proj", "down_proj"],
        beside=newer,
    )


def _models():
    yield Case(f"{MODEL}.path", "other", "model.path")
    yield Case("critic.model.path", "other", "roles.critic.path")
    yield Case(f"{MODEL}.tokenizer_path", "t", "model.tokenizer")
    yield Case("data.tokenizer", "t", "model.tokenizer")
    yield Case("critic.cliprange_value", 0.2, "critic.value_clip")
    # verl trains the actor from the step of that number on.
    yield Case("trainer.critic_warmup", 5, "critic.warmup_steps", 4)
    fp8 = {f"{OVERRIDES}.fp8": "hybrid"}
    yield Case(f"{OVERRIDES}.fp8", "hybrid", "model.fp8.format")
    yield Case(f"{OVERRIDES}.fp8_recipe", "tensorwise", "model.fp8.recipe", beside=fp8)
    kind = {f"{OVERRIDES}.moe_router_load_balancing_type": "seq_aux_loss"}
    weight = {f"{OVERRIDES}.moe_aux_loss_coeff": 1e-3}
    auxiliary = "model.router.seq_aux_loss"
    yield Case(f"{OVERRIDES}.moe_aux_loss_coeff", 1e-3, auxiliary, beside=kind)
    yield Case(*next(iter(kind.items())), auxiliary, 1e-3, beside=weight)
    yield Case(f"{OVERRIDES}.moe_z_loss_coeff", 1e-3, "model.router.z_loss")


def _rollouts():
    for theirs, value, ours in (
        ("name", "hf", "engine"),
        ("temperature", 0.7, "temperature"),
        ("top_p", 0.9, "top_p"),
        ("top_k", 50, "top_k"),
        ("n", 8, "num_samples"),
        ("tensor_model_parallel_size", 4, "tensor_parallel"),
        ("pipeline_model_parallel_size", 2, "pipeline_parallel"),
        ("gpu_memory_utilization", 0.7, "gpu_memory_utilization"),
        ("enforce_eager", True, "enforce_eager"),
        ("max_num_seqs", 64, "max_num_seqs"),
        ("prompt_length", 100, "max_prompt_tokens"),
        ("response_length", 100, "max_response_tokens"),
        ("dtype", "float32", "dtype"),
        ("enable_prefix_caching", False, "engine_options.enable_prefix_caching"),
        ("enable_chunked_prefill", False, "engine_options.enable_chunked_prefill"),
        ("max_num_batched_tokens", 4096, "engine_options.max_num_batched_tokens"),
        ("engine_kwargs.vllm.swap_space", 8, "engine_options.swap_space"),
        ("engine_kwargs.vllm.kv_cache_dtype", "fp8", "kv_cache_dtype"),
    ):
        corrected = {f"{CORRECTION}.rollout_is": "token"} if value == "fp8" else {}
        yield Case(f"{ROLLOUT}.{theirs}", value, f"rollout.{ours}", beside=corrected)
    yield Case(
        f"{ROLLOUT}.engine_kwargs.vllm", {"swap_space": 8}, "rollout.engine_options.swap_space", 8
    )
    yield Case(
        f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes", 2**30, "rollout.kv_cache_gib", 1
    )
    yield Case(
        f"{ROLLOUT}.quantization",
        "fp8",
        "rollout.quantization",
        beside={f"{CORRECTION}.rollout_is": "token"},
    )
    yield Case(f"{ROLLOUT}.expert_parallel_size", 2, "rollout.expert_parallel", True)
    section = f"{ROLLOUT}.val_kwargs"
    yield Case(f"{section}.do_sample", True, f"{VALIDATION}.num_samples", 1)
    yield Case(f"{section}.n", 8, f"{VALIDATION}.num_samples", beside=SAMPLED)
    yield Case(f"{section}.temperature", 0.5, f"{VALIDATION}.temperature", beside=SAMPLED)
    yield Case(f"{section}.top_p", 0.9, f"{VALIDATION}.top_p", beside=SAMPLED)


def _data():
    yield Case("data.train_files", ["a.parquet", "b.parquet"], "data.train.paths")
    yield Case("data.val_files", "c.parquet", "data.evaluation.paths", ["c.parquet"])
    yield Case("data.prompt_key", "question", "data.train.prompt_key")
    yield Case("data.prompt_key", "question", "data.evaluation.prompt_key")
    yield Case("data.train_max_samples", 99, "data.train.limit")
    yield Case("data.val_max_samples", 99, "data.evaluation.limit")
    yield Case(
        "data.apply_chat_template_kwargs.enable_thinking",
        False,
        "data.chat_template_kwargs",
        {"enable_thinking": False},
    )
    yield Case("data.apply_chat_template_kwargs", {"a": 1}, "data.chat_template_kwargs", {"a": 1})
    yield Case(f"{ROLLOUT}.stop_token_ids", [7], "rollout.stop_token_ids")
    yield Case(f"{ROLLOUT}.stop", "x", "rollout.stop", ["x"])
    yield Case("data.max_prompt_length", 99, "rollout.max_prompt_tokens")
    yield Case("data.max_response_length", 99, "rollout.max_response_tokens")
    yield Case("data.train_batch_size", 2048, "batch.size")
    yield Case("data.shuffle", False, "data.shuffle")
    yield Case("data.seed", 7, "seed")
    yield Case(f"{ROLLOUT}.seed", 7, "seed")
    yield Case(f"{ACTOR}.data_loader_seed", 7, "seed")
    yield Case("critic.data_loader_seed", 7, "seed")
    yield Case("data.filter_overlong_prompts", True, "rollout.overlong_prompt", "drop")
    yield Case("data.truncation", "left", "rollout.overlong_prompt", "truncate_left")


def _rewards():
    own = "reward.custom_reward_function"
    path = {f"{own}.path": "r.py"}
    yield Case(f"{own}.path", "r.py", "reward.function", "r.py:compute_score")
    yield Case(f"{own}.name", "score", "reward.function", "r.py:score", beside=path)
    yield Case(f"{own}.reward_kwargs", {"a": 1}, "reward.options.a", 1, beside=path)
    yield Case(f"{own}.reward_kwargs.a", 1, "reward.options.a", beside=path)
    model = {"reward.reward_model.model_path": "m"}
    yield Case("reward.reward_model.enable", True, "roles.reward.path", "m", beside=model)
    yield Case(
        *next(iter(model.items())), "roles.reward.path", beside={"reward.reward_model.enable": True}
    )
    long = "reward.reward_kwargs.overlong_buffer_cfg"
    on = {f"{long}.enable": True, f"{long}.len": 64}
    yield Case(f"{long}.enable", True, "algorithm.overlong.buffer", 64, beside={f"{long}.len": 64})
    yield Case(f"{long}.len", 32, "algorithm.overlong.buffer", beside=on)
    yield Case(f"{long}.penalty_factor", 0.5, "algorithm.overlong.factor", beside=on)


def _runs():
    yield Case("trainer.total_training_steps", 33, "steps")
    yield Case("trainer.total_epochs", 3, "epochs", beside={"trainer.total_training_steps": None})
    yield Case("trainer.project_name", "p", "directory", "checkpoints/p")
    yield Case("trainer.experiment_name", "my run", "name", "my-run")
    yield Case("trainer.default_local_dir", "there/mine", "name", "mine")
    yield Case("trainer.default_local_dir", "there/mine", "directory", "there")
    yield Case("trainer.logger", ["tensorboard"], "metrics.tensorboard", True)
    yield Case("trainer.logger", ["tensorboard"], "metrics.terminal", "off")
    for tracker, ours in (
        ("wandb", "metrics.wandb.project"),
        ("mlflow", "metrics.mlflow.experiment"),
        ("swanlab", "metrics.swanlab.project"),
    ):
        yield Case("trainer.logger", ["console", tracker], ours, "verl_examples")
        logged = {"trainer.logger": tracker}
        yield Case("trainer.project_name", "my/project", ours, "my-project", beside=logged)
    yield Case("trainer.log_val_generations", 5, "evaluation.save_generations", True)
    yield Case("trainer.validation_data_dir", "d", "evaluation.save_generations", True)
    yield Case("trainer.save_freq", 7, "checkpoint.every")
    yield Case("trainer.test_freq", 7, "evaluation.every")
    yield Case("trainer.val_before_train", False, "evaluation.at_start")
    yield Case("trainer.resume_mode", "disable", "checkpoint.resume", "never")
    yield Case("trainer.max_actor_ckpt_to_keep", 3, "checkpoint.keep")
    yield Case("trainer.n_gpus_per_node", 4, "parallel.data_parallel")
    yield Case("trainer.nnodes", 2, "parallel.data_parallel", 16)
    yield Case("actor_rollout_ref.nccl_timeout", 900, "runtime.collective_timeout_s", 900.0)
    yield Case(f"{ACTOR}.checkpoint.async_save", False, "checkpoint.background")


def _profiles():
    wanted = {"global_profiler.tool": "torch", "global_profiler.steps": [2, 5]}
    ours = "runtime.profile"
    on = {**wanted, f"{ACTOR}.profiler.enable": True}
    yield Case("global_profiler.steps", [3], f"{ours}.steps", beside=on)
    steps = {"global_profiler.steps": [2, 5]}
    yield Case("global_profiler.tool", "torch", f"{ours}.steps", [2, 5], beside=on)
    yield Case("global_profiler.tool", "torch_memory", f"{ours}.memory", True, beside=on)
    for model in (ACTOR, REF, CRITIC, ROLLOUT):
        section = f"{model}.profiler"
        yield Case(f"{section}.enable", True, f"{ours}.steps", [2, 5], beside=wanted)
        on = {**wanted, f"{section}.enable": True}
        yield Case(f"{section}.tool", "torch_memory", f"{ours}.memory", True, beside=on)
        alone = {**steps, f"{section}.enable": True}
        yield Case(f"{section}.tool", "torch", f"{ours}.steps", [2, 5], beside=alone)
        yield Case(f"{section}.ranks", [1, 3], f"{ours}.ranks", beside=on)
        two = {**on, "trainer.n_gpus_per_node": 2}
        yield Case(f"{section}.all_ranks", True, f"{ours}.ranks", [0, 1], beside=two)
        contents = f"{section}.tool_config.torch.contents"
        yield Case(contents, ["cpu", "memory"], f"{ours}.memory", True, beside=on)


CASES = [
    *_losses(),
    *_divergences(),
    *_advantages(),
    *_batches(),
    *_optimizers(),
    *_layouts(),
    *_models(),
    *_rollouts(),
    *_data(),
    *_rewards(),
    *_runs(),
    *_profiles(),
]


class Agreement:
    """A key that must agree with others: a value that does, and one that does not."""

    def __init__(self, key, value, wrong, **beside):
        self.key, self.value, self.wrong, self.beside = key, value, wrong, beside

    def __repr__(self):
        return self.key


AGREEMENTS = [
    Agreement("critic.ppo_mini_batch_size", 512, 256, **{f"{ACTOR}.ppo_mini_batch_size": 512}),
    Agreement("critic.ppo_epochs", 3, 2, **{f"{ACTOR}.ppo_epochs": 3}),
    Agreement("critic.shuffle", True, False, **{f"{ACTOR}.shuffle": True}),
    Agreement(
        "critic.loss_agg_mode",
        "seq-mean-token-mean",
        "token-mean",
        **{f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
    ),
    Agreement(
        "critic.loss_scale_factor",
        100.0,
        50.0,
        **{
            f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
            f"{ACTOR}.loss_scale_factor": 100.0,
        },
    ),
    Agreement("critic.enable", True, False),
    Agreement("critic.enable", False, True, **GRPO),
    Agreement(
        "algorithm.filter_groups.metric",
        "score",
        "length",
        **{**GRPO, "algorithm.filter_groups.enable": True},
    ),
    Agreement("data.gen_batch_size", 1024, 2048),
    Agreement(f"{ROLLOUT}.max_model_len", 4096, 1000),
    Agreement("reward.reward_kwargs.max_resp_len", 512, 256),
    Agreement("trainer.max_critic_ckpt_to_keep", 3, 4, **{"trainer.max_actor_ckpt_to_keep": 3}),
]
