"""What a trial of tuning costs: perplexity of answers with n rows, against n passes of the plain
model.

    python -m benchmarks.tuning --data-dir <folder with gsm8k/train.jsonl>

Samples are 5-shot GSM8K training problems, the loss is on the answers only, temperatures are 0.3 in
all layers but the first two and the last two (L=2), another seed in every trial. Clean activations
are cached between trials. One plain pass is transformers' own forward over every sample, with
logits for the answers alone. Without --data-dir samples are random tokens of the usual lengths.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch

from benchmarks.bench_model import VOCAB, make_model, make_tokenizer
from benchmarks.measure import side_by_side
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import store_on
from moe_lab.engine.pass_size import CPU_TOKENS
from moe_lab.engine.scoring import Budget, ScoringRequest, score
from moe_lab.engine.two_phase import TwoPhaseScorer
from moe_lab.models.experts import NAME
from moe_lab.routing import GumbelTopK, document_key

TEMPERATURES = [0.0, 0.0] + [0.3] * 4 + [0.0, 0.0]
FIRST_NOISY = 2
CONTEXT = (868, 125)
ANSWER = (96, 44)
"""Mean and standard deviation of the lengths of 5-shot GSM8K samples in tokens of the bench
tokenizer (of 200)."""


def gsm8k_samples(data_dir: str, samples: int) -> list[ScoringRequest]:
    """Few-shot examples are drawn anew for every sample, as lm-eval does."""
    path = Path(data_dir) / "gsm8k" / "train.jsonl"
    tokenizer = make_tokenizer([path])
    rng = random.Random(0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    questions = []
    for row in rng.sample(rows, samples):
        shots = [
            f"ScoringRequest: {r['question']}\nAnswer: {r['answer']}\n\n"
            for r in rng.sample(rows, 5)
        ]
        context = tokenizer.encode("".join(shots) + f"ScoringRequest: {row['question']}\nAnswer:")
        questions.append(question(context, tokenizer.encode(f" {row['answer']}")))
    return questions


def random_samples(samples: int) -> list[ScoringRequest]:
    rng = random.Random(0)

    def tokens(length: tuple[int, int]) -> list[int]:
        return [rng.randrange(1, VOCAB) for _ in range(max(20, round(rng.gauss(*length))))]

    return [question(tokens(CONTEXT), tokens(ANSWER)) for _ in range(samples)]


def question(context: list[int], answer: list[int]) -> ScoringRequest:
    return ScoringRequest(context, [answer], document_key(context))


def plain_pass(model: torch.nn.Module, questions: list[ScoringRequest]) -> Callable[[], None]:
    @torch.inference_mode()
    def run() -> None:
        for q in questions:
            answer = q.continuations[0]
            ids = torch.tensor([[*q.context, *answer[:-1]]])
            logits = model(ids, use_cache=False, logits_to_keep=len(answer)).logits[0]
            logits.float().log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum()

    return run


def trial(
    model: torch.nn.Module, questions: list[ScoringRequest], n: int, reuse: bool
) -> Callable[[], None]:
    budget = Budget(CPU_TOKENS)
    scorer = TwoPhaseScorer(model, FIRST_NOISY, store_on(torch.device("cpu")))
    seeds = count()

    def run() -> None:
        ensemble = Ensemble(n, GumbelTopK(TEMPERATURES, seed=next(seeds)), FIRST_NOISY)
        if reuse:
            scorer.score(ensemble, questions, budget, lambda i, scores: None)
        else:
            with EnsembleForward(model, ensemble) as forward:
                score(forward, questions, budget, lambda i, scores: None)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="local data as for data_dir= (default: random tokens)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--n", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = make_model()
    model.set_experts_implementation(NAME)
    if options.data_dir:
        questions = gsm8k_samples(options.data_dir, options.samples)
    else:
        questions = random_samples(options.samples)
    context = sum(len(q.context) for q in questions) / len(questions)
    answer = sum(len(q.continuations[0]) for q in questions) / len(questions)
    print(f"{len(questions)} samples, mean tokens: context {context:.0f}, answer {answer:.0f}\n")
    seconds = side_by_side(
        {
            "one plain pass, transformers": plain_pass(model, questions),
            "a trial": trial(model, questions, options.n, reuse=True),
            "a trial, nothing kept": trial(model, questions, options.n, reuse=False),
        },
        options.rounds,
    )
    plain = seconds["one plain pass, transformers"]
    print(
        f"| n={options.n} | seconds | times faster than {options.n} plain passes |\n|---|---:|---:|"
    )
    for name, value in seconds.items():
        print(f"| {name} | {value:.2f} | {options.n * plain / value:.2f} |")


if __name__ == "__main__":
    main()
