"""What RoE costs inside vLLM on a CPU, in seconds of the process: the numbers in README.md.

    VLLM_USE_V2_MODEL_RUNNER=0 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1 \
        python -m integrations.vllm.benchmark none      # or clean, standard
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from vllm import LLM, SamplingParams

from integrations.vllm.tests.cases import ANSWERS
from integrations.vllm.tests.support import TINY, engine

ROE = {"n": 8, "temperature": 0.3}
TEXTS, LENGTH, NEW = 32, 100, 64


def prompts() -> list[dict[str, Any]]:
    """32 prompts of 100 tokens of the embedded model's world, the first one of each different."""
    known = json.loads(ANSWERS.read_text(encoding="utf-8"))["standard"]["prompts"]
    stream = [token for ids in known for token in ids]
    return [{"prompt_token_ids": stream[i * 20 :][:LENGTH]} for i in range(TEXTS)]


def seconds(run: Callable[[], Any]) -> float:
    """The least of three runs; the first one in an engine is slower."""
    spent = []
    for _ in range(3):
        begin = time.process_time()
        run()
        spent.append(time.process_time() - begin)
    return min(spent)


def measure(llm: LLM) -> str:
    texts = SamplingParams(temperature=0, max_tokens=NEW, min_tokens=NEW, detokenize=False)
    scores = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)

    def generate(count: int, parameters: SamplingParams) -> float:
        return seconds(lambda: llm.generate(prompts()[:count], parameters, use_tqdm=False))

    return (
        f"{TEXTS} texts of {NEW} tokens {generate(TEXTS, texts):.2f} s, one text {generate(1, texts):.2f} s, "
        f"scores of {TEXTS * (LENGTH - 1)} tokens {generate(TEXTS, scores):.2f} s"
    )


def main(cache: str) -> None:
    roe = None if cache == "none" else ROE | {"cache": cache}
    with engine(TINY, roe, max_num_seqs=TEXTS, enable_prefix_caching=False) as llm:
        print(f"{cache}: {measure(llm)}")


if __name__ == "__main__":
    main(sys.argv[1])
