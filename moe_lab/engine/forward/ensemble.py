"""An ensemble: n routing samples of one token, averaged or contrasted into one distribution.

`ScaleSweep` finds the best logit scale (1 / softmax temperature) in one pass over the texts, since
the logits of a token are the same for all scales.

M = logit positions, n = routing samples of each (sample 0 has no noise), V = vocabulary, P = scored
tokens, S = scales.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from moe_lab.routing import SamplePolicy

STEP, STEPS = 1.02, 70
"""The scales are STEP ** -STEPS ... STEP ** STEPS: 0.25 to 4."""
SCALES = torch.tensor([STEP**power for power in range(-STEPS, STEPS + 1)], dtype=torch.float64)


class BestScale(NamedTuple):
    """The result of a `ScaleSweep`."""

    scale: float
    loss: float
    """Mean negative log-likelihood per token at this scale, in nats."""


class ScaleSweep:
    """Sums of log-likelihoods at each of `SCALES`, over all tokens that `add` gets."""

    def __init__(self) -> None:
        self.totals_S = torch.zeros(len(SCALES), dtype=torch.float64)
        self.tokens = 0

    def add(self, logits_MV: Tensor, at_P: Tensor, target_P: Tensor) -> None:
        """Add scored tokens: `target_P` after the logit positions `at_P`. Logits are float32, those
        at scale 1."""
        chosen_P = logits_MV[at_P, target_P]
        for place, scale in enumerate(SCALES.tolist()):
            norm_M = (scale * logits_MV).logsumexp(dim=-1)
            self.totals_S[place] += float((scale * chosen_P - norm_M[at_P]).double().sum())
        self.tokens += len(target_P)

    def best(self) -> BestScale:
        """The most likely of `SCALES`. `add` must have got a token."""
        place = int(self.totals_S.argmax())
        return BestScale(float(SCALES[place]), -float(self.totals_S[place]) / self.tokens)


def at_bound(scale: float) -> bool:
    """Whether a scale is the smallest or the largest one of `SCALES`: the best may lie beyond
    it."""
    return not float(SCALES[0]) < scale < float(SCALES[-1])


@dataclass(frozen=True)
class Contrast:
    """Contrastive decoding: sample 0, the strong one, against the mean of the other samples'
    logits.

    The logits of the distribution are `(1 + beta) * logits_0 - beta * logits_others`. Decoding
    takes plausible tokens only: those whose probability under sample 0 is at least `alpha` times
    the largest one. Scores of given tokens are those of the distribution over all tokens, because a
    token that is not plausible would have probability 0.
    """

    beta: float
    alpha: float

    def logits(self, logits_MnV: Tensor) -> Tensor:
        """[M, V]: the contrast of the samples' logits; those of sample 0 where it is alone."""
        strong_MV = logits_MnV[:, 0]
        if logits_MnV.shape[1] == 1:
            return strong_MV
        return (1 + self.beta) * strong_MV - self.beta * logits_MnV[:, 1:].mean(dim=1)

    def plausible(self, logits_MnV: Tensor) -> Tensor:
        """bool [M, V]: the tokens that decoding may take."""
        strong_MV = logits_MnV[:, 0].float()
        if self.alpha == 0:
            return torch.ones_like(strong_MV, dtype=torch.bool)
        return strong_MV >= strong_MV.amax(dim=-1, keepdim=True) + math.log(self.alpha)


@dataclass(frozen=True)
class Ensemble:
    """The routing samples of a logit position: number, routing and averaging. `Ensemble()` is the
    base model."""

    n: int = 1
    routing: SamplePolicy | None = None
    first_noisy: int = 0
    """The first MoE layer whose routing may differ between samples. All layers before it are
    computed once."""
    aggregate: str = "probabilities"
    include_clean: bool = True
    cache: str = "clean"
    """History that samples attend to: "clean", one without noise for all; "standard", each its own;
    "none", each its own, recomputed for every generated token."""
    prefill: str = "noisy"
    """With own histories: "noisy" reads prompts with noise, "clean" reads them without up to their
    last token."""
    logit_scale: float = 1.0
    """Factor of the logits, or of the log of the averaged distribution, before the last softmax."""
    sweep: ScaleSweep | None = None
    """Counts the log-likelihoods of all scored tokens at other scales, in place of
    `logit_scale`."""
    contrast: Contrast | None = None
    """The contrast of sample 0 with the others, in the place of `aggregate`."""

    @property
    def plain(self) -> bool:
        """Whether it is the base model, which lm-eval's own code can run."""
        return (
            self.n == 1 and self.logit_scale == 1 and self.sweep is None and self.contrast is None
        )

    @property
    def own_history(self) -> bool:
        """Whether each sample has its own keys and values."""
        return self.n > 1 and self.cache != "clean"

    @property
    def noiseless(self) -> bool:
        """Whether all samples equal the clean one."""
        return self.n == 1 or self.routing is None or self.routing.noiseless

    def next_scores(self, logits_MnV: Tensor) -> Tensor:
        """float32 [M, V]: the input of logits processors and decoding.

        With one sample: the model's logits. Otherwise: the log of the averaged distribution, -inf
        where a probability is below float32's range. Either is multiplied by `logit_scale`. With a
        contrast, tokens that are not plausible have -inf.
        """
        if self.n == 1:
            scores_MV = logits_MnV[:, 0].float()
        elif self._one_distribution:
            scores_MV = self._merged(logits_MnV).log_softmax(dim=-1)
        else:
            scores_MV = self._mean_probs(logits_MnV).log()
        scores_MV = self._plausible(logits_MnV, scores_MV)
        return scores_MV if self.logit_scale == 1 else scores_MV * self.logit_scale

    def greedy(self, logits_MnV: Tensor) -> Tensor:
        """int64 [M]: the most probable token."""
        if self._one_distribution:
            scores_MV = self._merged(logits_MnV)
        else:
            scores_MV = self._mean_probs(logits_MnV)
        return self._plausible(logits_MnV, scores_MV).argmax(dim=-1)

    def score(self, logits_MnV: Tensor, at_P: Tensor, target_P: Tensor) -> Tensor:
        """float32 [P]: log-probability of each token `target_P` at its logit position `at_P`, exact
        for any probability. A `sweep` counts the tokens."""
        if self._one_distribution or self.logit_scale != 1 or self.sweep:
            logits_MV = self._output(logits_MnV)
            if self.sweep:
                self.sweep.add(logits_MV, at_P, target_P)
            if self.logit_scale != 1:
                logits_MV = self.logit_scale * logits_MV
            return logits_MV[at_P, target_P] - logits_MV.logsumexp(dim=-1)[at_P]
        averaged = self._averaged(logits_MnV)
        log_probs_Pn = averaged[at_P, :, target_P] - averaged.logsumexp(dim=-1)[at_P]
        return log_probs_Pn.logsumexp(dim=-1) - math.log(averaged.shape[1])

    @property
    def _one_distribution(self) -> bool:
        """Whether there is one softmax: over a single sample, over the mean of logits, or over
        their contrast."""
        return self.n == 1 or self.aggregate == "logits" or self.contrast is not None

    def _plausible(self, logits_MnV: Tensor, scores_MV: Tensor) -> Tensor:
        """The scores, with -inf for tokens that a contrast does not decode."""
        if self.contrast is None:
            return scores_MV
        return scores_MV.masked_fill(~self.contrast.plausible(logits_MnV), -torch.inf)

    def _averaged(self, logits_MnV: Tensor) -> Tensor:
        """float32: the logits of the samples that the average takes, [M, n, V] or [M, n - 1, V]."""
        return logits_MnV.float() if self.include_clean else logits_MnV[:, 1:].float()

    def _merged(self, logits_MnV: Tensor) -> Tensor:
        """float32 [M, V]: the logits of the one distribution (`_one_distribution`)."""
        if self.contrast is not None:
            return self.contrast.logits(logits_MnV.float())
        if self.n == 1:
            return logits_MnV[:, 0].float()
        return self._averaged(logits_MnV).mean(dim=1)

    def _output(self, logits_MnV: Tensor) -> Tensor:
        """float32 [M, V]: logits of the averaged distribution, exact for any probability."""
        if self._one_distribution:
            return self._merged(logits_MnV)
        log_probs_MnV = self._averaged(logits_MnV).log_softmax(dim=-1)
        return log_probs_MnV.logsumexp(dim=1) - math.log(log_probs_MnV.shape[1])

    def _mean_probs(self, logits_MnV: Tensor) -> Tensor:
        """float32 [M, V]: the mean of the samples' probabilities."""
        return self._averaged(logits_MnV).softmax(dim=-1).mean(dim=1)
