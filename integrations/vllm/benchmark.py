"""What RoE costs on a CPU, inside vLLM and in moe_lab's own engine, in seconds of the process.

It prints the numbers in README.md.

    export OMP_NUM_THREADS=1
    VLLM_USE_V2_MODEL_RUNNER=0 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 \
        python -m integrations.vllm.benchmark none      # or clean, standard
    python -m integrations.vllm.benchmark moe_lab       # in moe_lab's own environment
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TINY, ANSWERS = (
    ROOT / "moe_lab" / "models" / "tiny",
    Path(__file__).parent / "tests" / "answers.json",
)
N, TEMPERATURE = 8, 0.3
TEXTS, LENGTH, NEW = 64, 100, 64


def prompts() -> list[list[int]]:
    """Prompts of 100 tokens of the embedded model's world.

    No two have more than their first five tokens in common.
    """
    known = json.loads(ANSWERS.read_text(encoding="utf-8"))["standard"]["prompts"]
    stream = [token for ids in known for token in ids]
    return [(stream[i * 20 :] + stream)[:LENGTH] for i in range(TEXTS)]


def seconds(run: Callable[[], Any]) -> float:
    """The least of three runs; the first one in an engine is slower."""
    spent = []
    for _ in range(3):
        begin = time.process_time()
        run()
        spent.append(time.process_time() - begin)
    return min(spent)


def by_vllm(cache: str) -> None:
    from vllm import SamplingParams

    from integrations.vllm.tests.support import engine

    texts = SamplingParams(temperature=0, max_tokens=NEW, min_tokens=NEW, detokenize=False)
    scores = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    roe = None if cache == "none" else {"n": N, "temperature": TEMPERATURE, "cache": cache}
    with engine(TINY, roe, max_num_seqs=TEXTS, enable_prefix_caching=False) as llm:

        def generate(count: int, parameters: Any) -> float:
            asked = [{"prompt_token_ids": ids} for ids in prompts()[:count]]
            return seconds(lambda: llm.generate(asked, parameters, use_tqdm=False))

        print(
            f"{cache}: {TEXTS} texts of {NEW} tokens {generate(TEXTS, texts):.2f} s, one text "
            f"{generate(1, texts):.2f} s, scores of {TEXTS * (LENGTH - 1)} tokens "
            f"{generate(TEXTS, scores):.2f} s"
        )


def by_moe_lab() -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessorList

    from moe_lab.engine.engine import KVEngine
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.forward.forward import EnsembleForward
    from moe_lab.engine.pass_size import pass_budget
    from moe_lab.engine.sampling import Decoding, GenerationState, Sampler
    from moe_lab.routing import GumbelTopK, document_key

    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    policy = GumbelTopK(
        [0.0] + [TEMPERATURE] * (model.config.num_hidden_layers - 2) + [0.0], seed=0
    )
    decoding = Decoding(
        Sampler(model, GenerationConfig(), 0, LogitsProcessorList()), lambda state: False, NEW
    )
    for cache in ("none", "clean", "standard"):
        ensemble = (
            Ensemble() if cache == "none" else Ensemble(N, policy, first_noisy=1, cache=cache)
        )
        engine = KVEngine(EnsembleForward(model, ensemble), pass_budget(model, TEXTS))

        def generate(count: int, engine: KVEngine = engine) -> float:
            def run() -> None:
                states = [
                    GenerationState(i, ids, document_key(ids))
                    for i, ids in enumerate(prompts()[:count])
                ]
                engine.generate(states, decoding, lambda state: None)

            return seconds(run)

        print(
            f"moe_lab, {cache}: {TEXTS} texts of {NEW} tokens {generate(TEXTS):.2f} s, "
            f"one text {generate(1):.2f} s"
        )


if __name__ == "__main__":
    by_moe_lab() if sys.argv[1] == "moe_lab" else by_vllm(sys.argv[1])
