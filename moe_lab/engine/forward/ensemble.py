"""An ensemble: n routing samples of one token, averaged into one distribution.

M = logit positions, n = routing samples of each (sample 0 has no noise), V = vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from moe_lab.engine.forward.adaptive import Adaptive
from moe_lab.engine.forward.logit_scale import ScaleSweep
from moe_lab.routing import GumbelTopK


@dataclass(frozen=True)
class Ensemble:
    """The routing samples of a logit position: number, routing and averaging. `Ensemble()` is the plain model."""

    n: int = 1
    routing: GumbelTopK | None = None
    first_noisy: int = 0
    """The first MoE layer whose routing may differ between samples. All layers before it are computed once."""
    aggregate: str = "probabilities"
    include_clean: bool = True
    cache: str = "clean"
    """History that samples attend to: "clean", one without noise for all; "standard", each its own; "none", each its
    own, recomputed for every generated token."""
    prefill: str = "noisy"
    """With own histories: "noisy" reads prompts with noise, "clean" reads them without up to their last token."""
    adaptive: Adaptive | None = None
    """How many of the n samples each token takes; None: all. With a clean history."""
    logit_scale: float = 1.0
    """What the logits, or the log of the averaged distribution, are multiplied by before the last softmax."""
    sweep: ScaleSweep | None = None
    """Counts the log-likelihoods of all scored tokens at other scales, in place of `logit_scale`."""

    @property
    def plain(self) -> bool:
        """Whether it is the base model, which needs no engine of ours."""
        return self.n == 1 and self.logit_scale == 1 and self.sweep is None

    def first(self, samples: int) -> Ensemble:
        """The ensemble of the first samples alone, of every token."""
        return replace(self, n=samples, adaptive=None)

    @property
    def own_history(self) -> bool:
        """Whether each sample has its own keys and values."""
        return self.n > 1 and self.cache != "clean"

    @property
    def noiseless(self) -> bool:
        """Whether all samples equal the clean one."""
        return self.n == 1 or self.routing is None or not any(self.routing.temperatures)

    def next_scores(self, logits_MnV: Tensor) -> Tensor:
        """float32 [M, V]: the input of logits processors and decoding.

        With one sample: the model's logits. Otherwise: the log of the averaged distribution, -inf where a probability
        is below float32's range. Either is multiplied by `logit_scale`.
        """
        if self.n == 1:
            scores_MV = logits_MnV[:, 0].float()
        elif self._one_distribution:
            scores_MV = self._merged(logits_MnV).log_softmax(dim=-1)
        else:
            scores_MV = self._mean_probs(logits_MnV).log()
        return scores_MV if self.logit_scale == 1 else scores_MV * self.logit_scale

    def greedy(self, logits_MnV: Tensor) -> Tensor:
        """int64 [M]: the most probable token."""
        scores = self._merged(logits_MnV) if self._one_distribution else self._mean_probs(logits_MnV)
        return scores.argmax(dim=-1)

    def score(self, logits_MnV: Tensor, at_P: Tensor, target_P: Tensor) -> Tensor:
        """float32 [P]: log-probability of token `target` at logit position `at`, exact for any probability."""
        if self._one_distribution or self.logit_scale != 1 or self.sweep:
            logits_MV = self._output(logits_MnV)
            if self.sweep:
                self.sweep.add(logits_MV, at_P, target_P)
            logits_MV = self.logit_scale * logits_MV
            return logits_MV[at_P, target_P] - logits_MV.logsumexp(dim=-1)[at_P]
        averaged = self._averaged(logits_MnV)
        log_probs_Pn = averaged[at_P, :, target_P] - averaged.logsumexp(dim=-1)[at_P]
        return log_probs_Pn.logsumexp(dim=-1) - math.log(averaged.shape[1])

    @property
    def _one_distribution(self) -> bool:
        """Whether there is one softmax: over a single sample, or over the mean of logits."""
        return self.n == 1 or self.aggregate == "logits"

    def _averaged(self, logits_MnV: Tensor) -> Tensor:
        return logits_MnV.float() if self.include_clean else logits_MnV[:, 1:].float()

    def _merged(self, logits_MnV: Tensor) -> Tensor:
        return logits_MnV[:, 0].float() if self.n == 1 else self._averaged(logits_MnV).mean(dim=1)

    def _output(self, logits_MnV: Tensor) -> Tensor:
        """float32 [M, V]: logits of the averaged distribution, exact for any probability."""
        if self._one_distribution:
            return self._merged(logits_MnV)
        log_probs_MnV = self._averaged(logits_MnV).log_softmax(dim=-1)
        return log_probs_MnV.logsumexp(dim=1) - math.log(log_probs_MnV.shape[1])

    def _mean_probs(self, logits_MnV: Tensor) -> Tensor:
        return self._averaged(logits_MnV).softmax(dim=-1).mean(dim=1)
