"""refused: weights of tasks that follow their scores, which are mix of a run."""
# says: no attribute 'DynamicTaskWeightScheduler': .*`mix:`.*docs/tasks.md

from verl_hpc.utils import DynamicTaskWeightScheduler

scheduler = DynamicTaskWeightScheduler(
    initial_weights={"preference_alignment": 0.5, "code_generation": 0.3},
    metric_key="reward_score",
    patience=500,
    min_weight=0.1,
)
