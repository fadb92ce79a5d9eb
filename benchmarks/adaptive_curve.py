"""What adaptive RoE keeps of full RoE's gain, at which share of its rows: the tables of docs/adaptive.md.

    python -m benchmarks.adaptive_curve MODEL [MODEL ...]

Each MODEL is a folder; give the same training with several seeds. Every document is read once with all n samples. What
bands take is computed from that: the mean over the first samples of each token. The temperature (one for all layers but
the first and the last) and the bands are chosen on validation documents, model by model; the tables are of test documents.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from moe_lab.engine.forward.adaptive import MEASURES, Adaptive, unsureness
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.results.statistics import bootstrap_interval
from moe_lab.routing import GumbelTopK, find_routers
from moe_lab.tasks.toy.questions import questions
from moe_lab.tasks.toy.stories import stories

TEMPERATURES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
TOKENS_INSIDE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the tokens inside the bounds that are tried."""
SAMPLES = (1, 2, 4, 6, 8, 10, 12, 14, 16, 24, 32)
"""Samples that are tried in a band."""
KEPT = (0.5, 0.7, 0.8, 0.92, 0.97)
"""Shares of the gain that bands are chosen for, on tuning texts. A share on other texts is lower: it is chosen."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Recorded(Ensemble):
    """An ensemble whose only result is `seen`: of every token, (its log-probability in each sample [P, n], measures [P])."""

    seen: list[tuple[Tensor, dict[str, Tensor]]] = field(default_factory=list)

    def score(self, logits_MnV: Tensor, at_P: Tensor, target_P: Tensor) -> Tensor:
        measures = {name: values[at_P] for name, values in unsureness(logits_MnV[:, 0]).items()}
        logprobs_Pn = logits_MnV[at_P, :, target_P] - logits_MnV.logsumexp(-1)[at_P]
        self.seen.append((logprobs_Pn, measures))
        return logprobs_Pn[:, 0]

    def greedy(self, logits_MnV: Tensor) -> Tensor:
        return torch.zeros(len(logits_MnV), dtype=torch.long)


@dataclass(frozen=True)
class Reading:
    """The scored tokens of documents, P in all. Those of a question are its choices, the gold one named by `gold`."""

    mean_Pn: Tensor
    """Log of the mean probability of the first 1 ... n samples."""
    measures: dict[str, Tensor]
    document_P: np.ndarray

    def values(self, samples_P: Tensor) -> np.ndarray:
        """[P]: the log-probability of each token with so many samples."""
        picked: np.ndarray = self.mean_Pn[torch.arange(len(samples_P)), samples_P - 1].numpy()
        return picked

    def by_document(self, samples_P: Tensor) -> np.ndarray:
        """[documents]: log-likelihoods."""
        return np.bincount(self.document_P, weights=self.values(samples_P))

    def all_take(self, n: int) -> Tensor:
        return torch.full((len(self.mean_Pn),), n)


def read(folder: str, temperature: float, n: int, kind: str, asked: Iterable[list[Request]]) -> Reading:
    """`asked`: the requests of each document, which score one token each or a whole text."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    layers = len(find_routers(model))
    routing = GumbelTopK([0.0, *[temperature] * (layers - 2), 0.0], seed=0)
    ensemble = Recorded(n, routing, first_noisy=1)
    lm = EngineLM(model, AutoTokenizer.from_pretrained(folder), ensemble=ensemble, progress=False)
    document: list[int] = []
    for number, requests in enumerate(asked):
        before = len(ensemble.seen)
        lm.answer(kind, requests, lambda index, answer: None)
        document += [number] * sum(len(values) for values, _ in ensemble.seen[before:])
    logprobs = torch.cat([values for values, _ in ensemble.seen]).double()
    counts = torch.arange(1, n + 1).double()
    return Reading(
        logprobs.logcumsumexp(dim=1) - counts.log(),
        {name: torch.cat([measures[name] for _, measures in ensemble.seen]) for name in MEASURES},
        np.array(document),
    )


def read_texts(folder: str, temperature: float, n: int, split: str, count: int) -> Reading:
    texts = [[Request((document["text"],))] for document in stories(split, count)]
    return read(folder, temperature, n, "loglikelihood_rolling", texts)


def read_questions(folder: str, temperature: float, n: int, count: int) -> tuple[Reading, np.ndarray]:
    """(the four choices of each question, one token each; the gold choice of each question)."""
    asked: list[Any] = questions("test", count)
    pairs = [[Request((f"Question: {q['question']}\nAnswer:", f" {c}")) for c in q["choices"]] for q in asked]
    reading = read(folder, temperature, n, "loglikelihood", pairs)
    assert len(reading.document_P) == 4 * len(asked)
    return reading, np.array([q["answer"] for q in asked])


def tuned_temperature(folder: str, n: int, count: int) -> tuple[float, Reading]:
    """The temperature with the highest log-likelihood of the validation documents, and their reading."""
    readings = {t: read_texts(folder, t, n, "validation", count) for t in TEMPERATURES}
    best = max(readings, key=lambda t: readings[t].by_document(readings[t].all_take(n)).sum())
    return best, readings[best]


Policy = Callable[[Reading], Tensor]
"""The samples of each token."""
Bands = list[tuple[float, int]]


def adaptive(measure: str, bands: Bands) -> Policy:
    return lambda reading: Adaptive(measure, bands).samples_of(reading.measures)


def fewer(n: int) -> Policy:
    return lambda reading: reading.all_take(n)


def candidates(reading: Reading, measure: str, n: int) -> Iterator[Bands]:
    """All policies of one band or two, with bounds at the deciles of the reading's tokens."""
    deciles = torch.tensor(TOKENS_INSIDE if measure == "margin" else [1 - share for share in TOKENS_INSIDE])
    bounds = reading.measures[measure].quantile(deciles.float()).tolist()
    samples = [each for each in SAMPLES if each <= n]
    for bound, each in product(bounds, samples[1:]):
        yield [(bound, each)]
    for (first, second), (one, other) in product(combinations(bounds, 2), permutations(samples, 2)):
        if other > 1:
            yield [(first, one), (second, other)]


def cheapest(reading: Reading, measure: str, n: int) -> dict[float, Bands]:
    """For each of `KEPT` the bands with the fewest rows that keep this share of the gain on the reading's own texts."""
    tried = []
    base, full = (reading.by_document(reading.all_take(each)).sum() for each in (1, n))
    for bands in candidates(reading, measure, n):
        samples_P = adaptive(measure, bands)(reading)
        share = (reading.values(samples_P).sum() - base) / (full - base)
        tried.append((float(samples_P.float().mean()), float(share), bands))
    tried.sort(key=lambda one: one[0])
    return {kept: next(bands for _, share, bands in tried if share >= kept) for kept in KEPT}


def gains(readings: list[Reading], policies: list[Policy]) -> np.ndarray:
    """[documents]: log-likelihood minus the plain model's, mean over models."""
    return np.mean(
        [
            reading.by_document(policy(reading)) - reading.by_document(reading.all_take(1))
            for reading, policy in zip(readings, policies, strict=True)
        ],
        axis=0,
    )


def kept_share(readings: list[Reading], policies: list[Policy], n: int) -> tuple[float, float, float]:
    """(share of full RoE's gain that is kept, its 95% percentile interval over documents, paired)."""
    own, full = gains(readings, policies), gains(readings, [fewer(n)] * len(readings))
    drawn = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
    ratios = own[drawn].mean(axis=1) / full[drawn].mean(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(own.mean() / full.mean()), float(low), float(high)


def rows(readings: list[Reading], policies: list[Policy], n: int) -> float:
    """Share of full RoE's rows, mean over models."""
    pairs = zip(readings, policies, strict=True)
    return float(np.mean([policy(reading).float().mean() / n for reading, policy in pairs]))


def written(bands: Bands) -> str:
    """As `method.bands` has it."""
    return "[" + ",".join(f"[{bound:.3g},{samples}]" for bound, samples in bands) + "]"


def shown(value: float, interval: Any, form: str) -> str:
    low, high = interval
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def text_table(test: list[Reading], policies: dict[str, list[Policy]], n: int) -> None:
    full = gains(test, [fewer(n)] * len(test))
    tokens = len(test[0].document_P) / len(full)
    print(
        f"\nlog-likelihood of {len(full):,} texts, {tokens:.0f} tokens each; full RoE's gain in nats per text: "
        f"{shown(full.mean(), bootstrap_interval(full), '+.3f')}\n"
    )
    print("| policy | share of rows | share of the gain | by model |\n|---|---:|---:|---|")
    for name, own in policies.items():
        share, low, high = kept_share(test, own, n)
        each = [kept_share([reading], [policy], n)[0] for reading, policy in zip(test, own, strict=True)]
        by_model = ", ".join(f"{value:.0%}" for value in each)
        print(f"| {name} | {rows(test, own, n):.1%} | {shown(share, (low, high), '.1%')} | {by_model} |")


def question_table(
    asked: list[tuple[Reading, np.ndarray]], policies: dict[str, list[Policy]], n: int
) -> None:
    """Log-likelihood of the gold answers, and accuracy, minus those of the plain model."""
    print(f"\n{len(asked[0][1]):,} questions\n")
    print("| policy | share of rows | gold answers, nats | accuracy |\n|---|---:|---:|---:|")
    for name, own in policies.items():
        gold, right = [], []
        for (reading, answer_D), policy in zip(asked, own, strict=True):
            found = [
                reading.values(samples).reshape(-1, 4) for samples in (policy(reading), reading.all_take(1))
            ]
            each = np.arange(len(answer_D))
            gold.append(found[0][each, answer_D] - found[1][each, answer_D])
            right.append([(values.argmax(1) == answer_D).astype(float) for values in found])
        gold_D, right_D = np.mean(gold, axis=0), np.mean([with_ - plain for with_, plain in right], axis=0)
        cells = [shown(v.mean(), bootstrap_interval(v), "+.4f") for v in (gold_D, right_D)]
        share = rows([reading for reading, _ in asked], own, n)
        print(f"| {name} | {share:.1%} | {cells[0]} | {cells[1]} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--tuning-texts", type=int, default=200)
    options = parser.parse_args()
    n, folders = options.n, [str(folder) for folder in options.models]
    tuned = [tuned_temperature(folder, n, options.tuning_texts) for folder in folders]
    temperatures, tuning = [t for t, _ in tuned], [reading for _, reading in tuned]
    print(f"n={n}, tuned temperatures {temperatures}")
    policies: dict[str, list[Policy]] = {
        f"n={each} for all tokens": [fewer(each)] * len(folders) for each in SAMPLES if 1 < each <= n
    }
    for measure in MEASURES:
        best = [cheapest(reading, measure, n) for reading in tuning]
        for kept in KEPT:
            bands = [each[kept] for each in best]
            policies[f"{measure}, {kept:.0%} when tuned"] = [adaptive(measure, each) for each in bands]
            print(f"{measure}, {kept:.0%}: ", "; ".join(map(written, bands)))
    pairs = list(zip(folders, temperatures, strict=True))
    text_table([read_texts(f, t, n, "test", options.texts) for f, t in pairs], policies, n)
    question_table([read_questions(f, t, n, options.questions) for f, t in pairs], policies, n)


if __name__ == "__main__":
    main()
