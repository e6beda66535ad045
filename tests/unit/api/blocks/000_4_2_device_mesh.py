"""refused: a model of Megatron-core; a run cuts a model for Megatron-core itself."""
# says: Megatron-core's GPTModel.*parallel.engine: megatron

from megatron.core.models.gpt.gpt_model import GPTModel

from verl_hpc import ActorModel, DeviceMesh

megatron_model = GPTModel.__new__(GPTModel)  # its arguments are not asked for
tp_mesh = DeviceMesh("tensor", None)
pp_mesh = DeviceMesh("pipeline", None)
actor = ActorModel(megatron_model)
actor.set_device_mesh(tp_mesh, pp_mesh)
