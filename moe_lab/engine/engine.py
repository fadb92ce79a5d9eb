"""The interface between `EngineLM` and the code that runs the model, and the engine over a KV
cache."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import store_on
from moe_lab.engine.generate import generate
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.engine.scoring import Budget, OnScores, ScoringRequest, score
from moe_lab.engine.two_phase import TwoPhaseScorer


class Engine(ABC):
    """Scores continuations and generates states, given as token ids."""

    @property
    @abstractmethod
    def tokens_in(self) -> int:
        """Tokens put through the model so far, routing samples included, padding excluded."""

    @abstractmethod
    def score(self, requests: list[ScoringRequest], on_scores: OnScores) -> None:
        """Score all requests."""

    @abstractmethod
    def generate(
        self,
        states: list[GenerationState],
        decoding: Decoding,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        """Continue all prompts."""

    def set_ensemble(self, ensemble: Ensemble) -> None:
        """Run another ensemble from now on; `tokens_in` keeps counting.

        Raises NotImplementedError for an engine whose routing is not that of an ensemble.
        """
        raise NotImplementedError(f"{type(self).__name__} runs no ensemble.")


class KVEngine(Engine):
    """Runs batches of requests over the prefixes that they share.

    Args:
        reuse: cache clean activations between calls, within a share of the free memory.
    """

    def __init__(self, forward: EnsembleForward, budget: Budget, reuse: bool = False):
        self.forward = forward
        self.budget = budget
        ensemble = forward.ensemble
        self._prompt_store = store_on(forward.device) if reuse else None
        self.two_phase: TwoPhaseScorer | None = None
        if reuse or (ensemble.n > 1 and not ensemble.own_history):
            store = store_on(forward.device) if reuse else None
            self.two_phase = TwoPhaseScorer(forward.model, ensemble.first_noisy, store)

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far, by both phases of scoring, too."""
        tokens = self.forward.tokens_in
        if self.two_phase:
            tokens += self.two_phase.tokens_in
        return tokens

    def set_ensemble(self, ensemble: Ensemble) -> None:
        """Raises ValueError where the ensemble's first noisy layer is before that of the cached
        activations."""
        two_phase = self._two_phase_of(ensemble)
        if two_phase and ensemble.first_noisy < two_phase.first_noisy:
            raise ValueError(
                f"first_noisy={ensemble.first_noisy}, but cached activations begin at MoE layer "
                f"{two_phase.first_noisy}."
            )
        forward = EnsembleForward(self.forward.model, ensemble)
        forward.observer = self.forward.observer
        forward.tokens_in = self.forward.tokens_in
        self.forward = forward

    def _two_phase_of(self, ensemble: Ensemble) -> TwoPhaseScorer | None:
        """The scorer that an ensemble is scored with; None: in one phase, by `scoring.score`."""
        return self.two_phase if ensemble.n > 1 and ensemble.cache == "clean" else None

    def score(self, requests: list[ScoringRequest], on_scores: OnScores) -> None:
        """Score all requests, in two phases where samples share a clean history."""
        ensemble = self.forward.ensemble
        two_phase = self._two_phase_of(ensemble)
        if two_phase:
            two_phase.score(ensemble, requests, self.budget, on_scores)
        else:
            with self.forward as forward:
                score(forward, requests, self.budget, on_scores)

    def generate(
        self,
        states: list[GenerationState],
        decoding: Decoding,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        """Continue all prompts over one cache for each batch."""
        with self.forward as forward:
            generate(forward, states, self.budget, decoding, on_done, self._prompt_store)
