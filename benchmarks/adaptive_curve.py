"""What adaptive RoE keeps of full RoE's gain beyond calibration, at which share of its rows: the tables of docs/adaptive.md.

    python -m benchmarks.adaptive_curve MODEL [MODEL ...]

Each MODEL is a folder; give the same training with several seeds. Every document is read once with all n samples. What
bands take is computed from that: the mean over the first samples of each token. The temperature (one for all layers but
the first and the last), the bands and a logit scale for each number of samples are chosen on validation documents, model
by model; the tables are of test documents. The base model has its own scale too: a gain is one beyond calibration.

K = numbers of samples, S = logit scales, M = logit positions, n = samples, P = scored tokens, V = vocabulary.
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

from moe_lab.engine.forward.ensemble import MEASURES, Adaptive, Ensemble, unsureness
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.results.statistics import bootstrap_interval
from moe_lab.routing import GumbelTopK, find_routers
from moe_lab.tasks.toy.corpus import stories
from moe_lab.tasks.toy.questions import questions

TEMPERATURES = (0.3, 0.6, 0.9, 1.2, 1.6, 2.0)
TOKENS_INSIDE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the tokens inside the bounds that are tried."""
SAMPLES = (1, 2, 4, 6, 8, 10, 12, 14, 16, 24, 32)
"""Samples that are tried in a band, those of at most n: K of them."""
SCALES = tuple(round(0.78 + 0.02 * step, 2) for step in range(16))
"""Logit scales that are tried: 0.78 to 1.08."""
KEPT = (0.5, 0.7, 0.8, 0.92, 0.97)
"""Shares of the gain that bands are chosen for, on tuning texts. A share on other texts is lower: it is chosen."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Recorded(Ensemble):
    """An ensemble whose only result is `seen`: of every token, its log-probabilities [P, K, S] and its measures [P]."""

    seen: list[tuple[Tensor, dict[str, Tensor]]] = field(default_factory=list)

    def score(self, logits_MnV: Tensor, at_P: Tensor, target_P: Tensor) -> Tensor:
        measures = {name: values[at_P] for name, values in unsureness(logits_MnV[:, 0]).items()}
        summed_MnV = logits_MnV.float().log_softmax(-1).logcumsumexp(dim=1)
        logprobs = [
            [_scaled(summed_MnV[:, count - 1], scale, at_P, target_P) for scale in SCALES]
            for count in counts_to(self.n)
        ]
        logprobs_PKS = torch.stack([torch.stack(each, dim=-1) for each in logprobs], dim=1)
        self.seen.append((logprobs_PKS, measures))
        return logprobs_PKS[:, 0, 0]

    def greedy(self, logits_MnV: Tensor) -> Tensor:
        return torch.zeros(len(logits_MnV), dtype=torch.long)


def counts_to(n: int) -> list[int]:
    """The numbers of samples that a token may take, K of them."""
    return [count for count in SAMPLES if count <= n]


def _scaled(scores_MV: Tensor, scale: float, at_P: Tensor, target_P: Tensor) -> Tensor:
    """[P]: log-probability of the targets under the scaled scores, normalised again."""
    scaled_MV = scale * scores_MV
    return scaled_MV[at_P, target_P] - scaled_MV.logsumexp(-1)[at_P]


@dataclass(frozen=True)
class Reading:
    """The scored tokens of documents, P in all. Those of a question are its choices, the gold one named by `gold`."""

    logprobs_PKS: Tensor
    """Under the mean of the first samples, by their number and by logit scale."""
    measures: dict[str, Tensor]
    document_P: np.ndarray

    def best_scales(self) -> Tensor:
        """int64 [K]: the place of the logit scale with the highest log-likelihood, for each number of samples."""
        return self.logprobs_PKS.sum(dim=0).argmax(dim=-1)

    def at(self, scales_K: Tensor) -> ScaledReading:
        """The log-probabilities at one scale for each number of samples."""
        kept_PK = self.logprobs_PKS[:, torch.arange(len(scales_K)), scales_K]
        return ScaledReading(kept_PK, self.measures, self.document_P)


@dataclass(frozen=True)
class ScaledReading:
    """The scored tokens of documents at the logit scale of each number of samples."""

    logprobs_PK: Tensor
    measures: dict[str, Tensor]
    document_P: np.ndarray

    def values(self, samples_P: Tensor) -> np.ndarray:
        """[P]: the log-probability of each token with so many samples."""
        place_P = torch.searchsorted(torch.tensor(SAMPLES), samples_P)
        picked: np.ndarray = self.logprobs_PK[torch.arange(len(samples_P)), place_P].numpy()
        return picked

    def by_document(self, samples_P: Tensor) -> np.ndarray:
        """[documents]: log-likelihoods."""
        return np.bincount(self.document_P, weights=self.values(samples_P))

    def all_take(self, n: int) -> Tensor:
        return torch.full((len(self.logprobs_PK),), n)


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
    return Reading(
        torch.cat([values for values, _ in ensemble.seen]).double(),
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


def tuned(folder: str, n: int, count: int) -> tuple[float, Tensor, ScaledReading]:
    """The temperature with the highest log-likelihood of the validation documents, the scales [K], and their reading."""
    found = []
    for temperature in TEMPERATURES:
        reading = read_texts(folder, temperature, n, "validation", count)
        scales_K = reading.best_scales()
        scaled = reading.at(scales_K)
        found.append((scaled.by_document(scaled.all_take(n)).sum(), temperature, scales_K, scaled))
    _, temperature, scales_K, scaled = max(found, key=lambda one: one[0])
    return temperature, scales_K, scaled


Policy = Callable[[ScaledReading], Tensor]
"""The samples of each token."""
Bands = list[tuple[float, int]]


def adaptive(measure: str, bands: Bands) -> Policy:
    return lambda reading: Adaptive(measure, bands).samples_of(reading.measures)


def fewer(n: int) -> Policy:
    return lambda reading: reading.all_take(n)


def candidates(reading: ScaledReading, measure: str, n: int) -> Iterator[Bands]:
    """All policies of one band or two, with bounds at the deciles of the reading's tokens."""
    deciles = torch.tensor(TOKENS_INSIDE if measure == "margin" else [1 - share for share in TOKENS_INSIDE])
    bounds = reading.measures[measure].quantile(deciles.float()).tolist()
    samples = counts_to(n)
    for bound, each in product(bounds, samples[1:]):
        yield [(bound, each)]
    for (first, second), (one, other) in product(combinations(bounds, 2), permutations(samples, 2)):
        if other > 1:
            yield [(first, one), (second, other)]


def cheapest(reading: ScaledReading, measure: str, n: int) -> dict[float, Bands]:
    """For each of `KEPT` the bands with the fewest rows that keep this share of the gain on the reading's own texts."""
    tried = []
    base, full = (reading.by_document(reading.all_take(each)).sum() for each in (1, n))
    for bands in candidates(reading, measure, n):
        samples_P = adaptive(measure, bands)(reading)
        share = (reading.values(samples_P).sum() - base) / (full - base)
        tried.append((float(samples_P.float().mean()), float(share), bands))
    tried.sort(key=lambda one: one[0])
    return {kept: next(bands for _, share, bands in tried if share >= kept) for kept in KEPT}


def gains(readings: list[ScaledReading], policies: list[Policy]) -> np.ndarray:
    """[documents]: log-likelihood minus the calibrated base model's, mean over models."""
    return np.mean(
        [
            reading.by_document(policy(reading)) - reading.by_document(reading.all_take(1))
            for reading, policy in zip(readings, policies, strict=True)
        ],
        axis=0,
    )


def calibration_gain(reading: Reading, scaled: ScaledReading) -> np.ndarray:
    """[documents]: log-likelihood of the calibrated base model minus the base model's."""
    base = reading.at(torch.full((scaled.logprobs_PK.shape[1],), SCALES.index(1.0)))
    return scaled.by_document(scaled.all_take(1)) - base.by_document(base.all_take(1))


def kept_share(readings: list[ScaledReading], policies: list[Policy], n: int) -> tuple[float, float, float]:
    """(share of full RoE's gain beyond calibration that is kept, its 95% percentile interval over documents, paired)."""
    own, full = gains(readings, policies), gains(readings, [fewer(n)] * len(readings))
    drawn = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
    ratios = own[drawn].mean(axis=1) / full[drawn].mean(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(own.mean() / full.mean()), float(low), float(high)


def rows(readings: list[ScaledReading], policies: list[Policy], n: int) -> float:
    """Share of full RoE's rows, mean over models."""
    pairs = zip(readings, policies, strict=True)
    return float(np.mean([policy(reading).float().mean() / n for reading, policy in pairs]))


def written(bands: Bands) -> str:
    """As `method.bands` has it."""
    return "[" + ",".join(f"[{bound:.3g},{samples}]" for bound, samples in bands) + "]"


def shown(value: float, interval: Any, form: str) -> str:
    low, high = interval
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def text_table(
    unscaled: list[Reading], test: list[ScaledReading], policies: dict[str, list[Policy]], n: int
) -> None:
    full = gains(test, [fewer(n)] * len(test))
    calibration = np.mean(list(map(calibration_gain, unscaled, test)), axis=0)
    tokens = len(test[0].document_P) / len(full)
    print(
        f"\nlog-likelihood of {len(full):,} texts, {tokens:.0f} tokens each; nats per text: calibration over base "
        f"{shown(calibration.mean(), bootstrap_interval(calibration), '+.3f')}, full RoE over calibration "
        f"{shown(full.mean(), bootstrap_interval(full), '+.3f')}\n"
    )
    print("| policy | share of rows | share of the gain | by model |\n|---|---:|---:|---|")
    for name, own in policies.items():
        share, low, high = kept_share(test, own, n)
        each = [kept_share([reading], [policy], n)[0] for reading, policy in zip(test, own, strict=True)]
        by_model = ", ".join(f"{value:.0%}" for value in each)
        print(f"| {name} | {rows(test, own, n):.1%} | {shown(share, (low, high), '.1%')} | {by_model} |")


def question_table(
    asked: list[tuple[ScaledReading, np.ndarray]], policies: dict[str, list[Policy]], n: int
) -> None:
    """Log-likelihood of the gold answers, and accuracy, minus those of the calibrated base model."""
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
    found = [tuned(folder, n, options.tuning_texts) for folder in folders]
    temperatures, tuning = [t for t, _, _ in found], [reading for _, _, reading in found]
    print(f"n={n}, tuned temperatures {temperatures}")
    for count, place in [(1, 0), (n, counts_to(n).index(n))]:
        print(f"logit scale with {count} samples: {[SCALES[int(scales[place])] for _, scales, _ in found]}")
    policies: dict[str, list[Policy]] = {
        f"n={each} for all tokens": [fewer(each)] * len(folders) for each in SAMPLES if 1 < each <= n
    }
    for measure in MEASURES:
        best = [cheapest(reading, measure, n) for reading in tuning]
        for kept in KEPT:
            bands = [each[kept] for each in best]
            policies[f"{measure}, {kept:.0%} when tuned"] = [adaptive(measure, each) for each in bands]
            print(f"{measure}, {kept:.0%}: ", "; ".join(map(written, bands)))
    read_test = [
        read_texts(f, t, n, "test", options.texts) for f, (t, _, _) in zip(folders, found, strict=True)
    ]
    scaled = [reading.at(scales_K) for reading, (_, scales_K, _) in zip(read_test, found, strict=True)]
    text_table(read_test, scaled, policies, n)
    asked = []
    for folder, (temperature, scales_K, _) in zip(folders, found, strict=True):
        reading, gold = read_questions(folder, temperature, n, options.questions)
        asked.append((reading.at(scales_K), gold))
    question_table(asked, policies, n)


if __name__ == "__main__":
    main()
