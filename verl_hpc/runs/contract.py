"""Names and values that the batch script, on the host, and the ranks share."""

ATTEMPT = "VERL_HPC_ATTEMPT"
"""Variable of script and ranks: the directory of this start's logs."""

GPUS_PER_NODE = "VERL_HPC_GPUS_PER_NODE"
"""Variable of script and ranks: the GPUs that the site profile promises on each node. With 0, ranks
compute on the cores, whatever the nodes have."""

CACHE_DIRECTORY = "VERL_HPC_CACHE"
"""Variable of script and ranks: the job's node-local directory for what compilers keep."""

CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "VLLM_CACHE_ROOT": "vllm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TILELANG_CACHE_DIR": "tilelang",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "CUDA_CACHE_PATH": "cuda",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
}
"""Variables that name compilers' caches, and the directories below CACHE_DIRECTORY. On a network
file system, ranks that compile at once would get stale handles, or wait for the lock of a killed
job."""

KEPT_CACHES = "VERL_HPC_KEPT_CACHES"
"""Variable of script and ranks: the directory of shared storage that keeps archives of compile
caches for the next start."""

NODE_ADDRESS = "VERL_HPC_NODE_ADDRESS"
"""Variable of script and ranks: pattern of the names at which nodes are reached, with {node} for a
node's own name."""

END_TIME = "VERL_HPC_END_TIME"
"""Variable of script and ranks: end of the allocation in seconds since the epoch, if Slurm does not
give it."""

OUTCOME = "outcome"
"""File in ATTEMPT's directory with rank 0's outcome, without which exit status 0 is no success. A
start reads its own, whatever other starts of the run do meanwhile."""

RESTART = 85
"""Exit status of a rank whose state is saved and whose run is not finished: start the job again.

Every rank must exit with it, and must ignore SIGTERM from the moment it has saved: the first rank
that exits makes `srun --kill-on-bad-exit=1` send TERM to the others, and one that dies of it turns
the step's status from 85 into 143. The value is above 64 to 78, which programs use, and below the
shell's 126.
"""
