"""refused: a guard of metrics, which is guards of a run."""
# says: no attribute 'SafetyGuard': .*`guards:`.*docs/tasks.md

from verl_hpc.trainer import SafetyGuard

guard = SafetyGuard(
    monitor_metrics=["dialogue_fluency", "code_correctness"],
    threshold_delta=-0.15,
    rollback_steps=100,
)
