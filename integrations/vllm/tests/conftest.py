"""The environment variables of vLLM on a CPU.

They set one process, 1 GiB for the KV cache and the first model runner.
"""

from __future__ import annotations

import os

os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")
