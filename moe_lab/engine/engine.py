"""The interface between `EngineLM` and the code that runs the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.generation.prefill import GenerationState
from moe_lab.engine.generation.sampling import Decoding
from moe_lab.engine.scoring.scoring import ScoringRequest
from moe_lab.engine.scoring.token_scores import Scores


class Engine(ABC):
    """Scores continuations and generates states, given as token ids."""

    @property
    @abstractmethod
    def tokens_in(self) -> int:
        """Tokens put through the model so far, routing samples included, padding excluded."""

    @abstractmethod
    def score(self, requests: list[ScoringRequest], on_scores: Callable[[int, Scores], None]) -> None:
        """Score all requests; `on_scores(index, scores)` is called as soon as a request is done, in any order."""

    @abstractmethod
    def generate(
        self,
        states: list[GenerationState],
        decoding: Decoding,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        """Continue all prompts; `on_done(state)` is called as soon as a sequence ends, in any order."""

    def set_ensemble(self, ensemble: Ensemble) -> None:
        """Run another ensemble from now on; `tokens_in` goes on counting.

        Raises NotImplementedError for an engine whose routing is not that of an ensemble.
        """
        raise NotImplementedError(f"{type(self).__name__} runs no ensemble.")
