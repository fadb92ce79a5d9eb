"""The engine as an lm-eval model.

`EngineLM` is an lm-eval model: `lm_eval.simple_evaluate(model=EngineLM(model, tokenizer),
tasks=["gsm8k"])` works. It extends lm-eval's `hf` model, and has its tokenization, prompts, chat
templates and truncation.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from moe_lab.config.progress import Progress
from moe_lab.engine import lm_answers
from moe_lab.engine.engine import Engine, KVEngine
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward, Observer
from moe_lab.engine.forward.layers import kv_cache_obstacle, reads_the_batch, require_masks
from moe_lab.engine.forward.quantized import quantizes_passes
from moe_lab.engine.forward.rotary import RotaryHooks
from moe_lab.engine.hf import THINK_END, CountedHF, Encoder, OnAnswer, Pair, Request
from moe_lab.engine.pass_size import LEAST_TOKENS, pass_budget
from moe_lab.engine.recurrent import RecurrentEngine, RecurrentForward
from moe_lab.engine.sampling import GenerationState
from moe_lab.errors import ConfigError
from moe_lab.models.facts import leave_out_cudnn_attention
from moe_lab.models.lm_eval_internals import answers_for_lm_eval, request_arguments
from moe_lab.models.output_flags import expected_flags
from moe_lab.models.state import check_unchanged, state_of
from moe_lab.routing.hook import opened, require_routers
from moe_lab.routing.tokens import decides_by_tokens

logger = logging.getLogger("moe_lab")


_ANSWER = {
    "loglikelihood": lm_answers.score_pairs,
    "loglikelihood_rolling": lm_answers.score_texts,
    "generate_until": lm_answers.generate,
}
"""The function that answers requests, by their kind."""


class EngineLM(CountedHF):
    """A causal language model for lm-eval that computes a shared prefix once.

    `engine` runs the model. It is a `KVEngine` where the layers keep keys and values alone, else a
    `RecurrentEngine` for ensembles. For a base model with other layers, or whose quantized layers
    read all tokens of a pass, it is None, and lm-eval's own code runs the model.

    Args:
        model, tokenizer: of transformers. The model keeps its device and dtype.
        ensemble: routing samples of each token; the base model by default.
        batch_size: maximum number of sequences per forward pass. "auto": limited by a number of
            tokens only, which limits every pass. 1 where padding or other texts would change scores
            (expert choice, quantized layers).
        max_batch_size: maximum number of sequences with "auto".
        max_length: maximum length of an input in tokens. Longer inputs lose their beginning.
        add_bos_token: as in lm-eval.
        seed: seed of sampling, for `gen_kwargs` that sample.
        reuse: cache the clean activations of all requests, within a share of the free memory, for
            later calls of `answer` with other temperatures (`set_ensemble`). Answers are the same
            within float error. Noise of any later ensemble begins at `ensemble.first_noisy` or
            later.
        progress: whether a progress bar is shown.
        make_engine: called with this LM once its budget is known. Returns the engine to use
            instead.
        counts_tokens: whether something counts the tokens of each pass. lm-eval's own code does not
            say what it pads: models without a `KVEngine` then run one request at a time.

    The ensemble is that of lm-eval's requests. `lm.model`, and with it `lm.model.generate`, is the
    base model: `moe_lab.RoE` generates with an ensemble.

    Raises ModelError for an ensemble on a model without a supported router, ConfigError for one
    with flash attention or with layers that quantize all tokens of a pass together.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        ensemble: Ensemble | None = None,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        seed: int = 0,
        reuse: bool = False,
        progress: bool = True,
        make_engine: Callable[[Any], Engine] | None = None,
        counts_tokens: bool = False,
    ):
        leave_out_cudnn_attention()
        self.ensemble = ensemble or Ensemble()
        quantized = quantizes_passes(model)
        if self.ensemble.n > 1:
            require_routers(model)
        if make_engine or not self.ensemble.plain:
            _require_separate_tokens(model, quantized)
        self.progress = progress
        self.can_halve_passes = True
        """Whether passes become smaller where memory runs out. It is an error where other processes
        make the same passes."""
        self.seed = seed
        self.session_info: dict[str, Any] = {}
        """JSON values that a method stores with the answers (`Method.open`)."""
        self._quantized = quantized
        self.rotary = RotaryHooks(model)
        if reads_the_batch(model) or quantized:
            batch_size = 1
        if str(batch_size).startswith("auto"):
            most_sequences = max_batch_size
            hf_batch_size = max_batch_size or 8
        else:
            most_sequences = int(batch_size)
            hf_batch_size = most_sequences
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=hf_batch_size,
            max_length=max_length,
            add_bos_token=add_bos_token,
        )
        self._device = next(model.parameters()).device
        self.budget = pass_budget(model, most_sequences)
        self.encoder = Encoder(self)
        self.observer = Observer()
        self.kept_states: dict[str, GenerationState] | None = None
        """The tokens generated for each prompt, inside `keeping_tokens`."""
        self._state = state_of(model)
        self.engine: Engine | None
        obstacle = kv_cache_obstacle(model) or quantized
        if make_engine:
            self.engine = make_engine(self)
        elif obstacle is None:
            self.engine = KVEngine(EnsembleForward(model, self.ensemble), self.budget, reuse)
        else:
            # quantized layers read no padding, which is not counted then
            counts_padding = (counts_tokens or decides_by_tokens(model)) and not quantized
            self.engine = self._engine_without_kv_cache(obstacle, counts_padding)

    label = "moe_lab.lm"
    """Name of this LM in the messages of `running`."""

    def _engine_without_kv_cache(
        self, obstacle: str, counts_padding: bool
    ) -> RecurrentEngine | None:
        """A `RecurrentEngine` for ensembles, and where padding is counted; None: lm-eval's own code
        runs the model. Warns, with the obstacle, that either is slower."""
        engine = None
        how = "by lm-eval's own code"
        if counts_padding or not self.ensemble.plain:
            engine = RecurrentEngine(RecurrentForward(self.model, self.ensemble))
            how = "one request at a time"
        logger.warning(
            "%s does not run over the shared KV cache, because %s. It runs %s, which is slower.",
            type(self.model).__name__,
            obstacle,
            how,
        )
        return engine

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside the context this LM runs the model.

        Raises RoutingError inside another LM or `record`, and ModelError for a model in training
        mode, or whose device, routers or adapters are others than when this LM was made.
        """
        check_unchanged(self.model, self._state, self.label)
        with opened(self.model, self.label, alone=True), expected_flags(self.model.config):
            yield

    def set_ensemble(self, ensemble: Ensemble) -> None:
        """Use another ensemble from now on; `cost` keeps counting.

        Raises ValueError where the ensemble's first noisy layer is before that of the cached
        activations.
        """
        assert self.engine is not None
        self.engine.set_ensemble(ensemble)
        self.counted.update(self._decisions)
        self.ensemble = ensemble

    @contextmanager
    def keeping_tokens(self) -> Iterator[dict[str, GenerationState]]:
        """Inside the context: the tokens generated for each prompt, by its text."""
        self.kept_states = {}
        try:
            yield self.kept_states
        finally:
            self.kept_states = None

    def observe(self, observer: Observer) -> None:
        """Call `observer` for all passes and requests from now on. For base models without `reuse`.

        Raises ConfigError for a model without a `KVEngine`.
        """
        if not isinstance(self.engine, KVEngine):
            raise ConfigError(
                f"metrics=expert: the tokens of {type(self.model).__name__} cannot be assigned to "
                "examples. Its layers keep more than keys and values, so lm-eval's own code runs "
                "it. Leave metrics=expert out."
            )
        observer.kind = self.rotary.kind
        self.observer = self.engine.forward.observer = observer

    @property
    def cost(self) -> dict[str, int]:
        """Counts of all work so far. A count may be missing instead of 0.

        - tokens_in: tokens put through the model (routing samples included, padding excluded)
        - tokens_out: generated tokens
        - near_ties: greedy tokens whose runner-up was within the dtype's rounding
          (`sampling.near`), so that other shapes or machines may choose it
        - cut_prompts: requests whose prompt was longer than the model's input and lost its
          beginning
        - cut_reasoning: replies that ended in the reasoning
        - decoded_in_context: answers whose text is not that of their tokens alone
          (`moe_lab.models.new_text`)
        - eos_added: requests that the tokenizer adds an end token to
        - bos_scored: texts whose added beginning token is scored
        - no_end_token: replies that no token ends
        - changed_decisions, noisy_decisions: see `GumbelTopK.counts`
        """
        cost = Counter(self.counted)
        cost.update(self._decisions)
        if self.engine:
            cost["tokens_in"] += self.engine.tokens_in
        return dict(cost)

    @property
    def _decisions(self) -> dict[str, int]:
        """What the policy of the current ensemble counted; empty for the base model."""
        if not self.ensemble.routing:
            return {}
        return self.ensemble.routing.counts()

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        return self._answers("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        return self._answers("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return self._answers("generate_until", requests)

    def _answers(self, kind: str, instances: list[Any]) -> list[Any]:
        """The answers to lm-eval's instances, in order.

        lm-eval requests several answers to a prompt by repeating the same instance: they are
        numbered.
        """
        seen: Counter[int] = Counter()
        requests = []
        for instance in instances:
            repeat = seen[id(instance)]
            requests.append(Request(request_arguments(instance), repeat))
            seen[id(instance)] += 1
        answers: dict[int, Any] = {}
        self.answer(kind, requests, answers.__setitem__)
        return answers_for_lm_eval(kind, [answers[i] for i in range(len(requests))])

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        """Answer all requests; `on_answer(index, answer)` is called as soon as a request is
        answered, in any order.

        Args:
            kind: "loglikelihood" -> (log-likelihood, whether greedy), "loglikelihood_rolling" ->
                log-likelihood, "generate_until" -> text.
        """
        if decides_by_tokens(self.model):
            _require_unquantized(self._quantized)
        if self.engine is None and self._needs_engine(kind, requests):
            self.engine = RecurrentEngine(RecurrentForward(self.model, self.ensemble))
        with (
            self.running(),
            Progress(len(requests), kind, "request", shown=self.progress) as progress,
        ):

            def report(index: int, answer: Any) -> None:
                on_answer(index, answer)
                progress.update()

            if self.engine is None:
                self._check_encoding(kind, requests)
                self.answer_by_hf(kind, requests, report)
            else:
                self._answer_by_engine(self.engine, kind, requests, report)
            self._count_tokenization(kind, len(requests))

    def _answer_by_engine(
        self, engine: Engine, kind: str, requests: Sequence[Request], on_answer: OnAnswer
    ) -> None:
        """Answer all requests. Where memory runs out, the unanswered ones are put again, in smaller
        passes; raises the error where passes cannot be smaller."""
        unanswered = dict(enumerate(requests))
        while unanswered:
            indices = list(unanswered)

            def report(i: int, answer: Any, indices: list[int] = indices) -> None:
                on_answer(indices[i], answer)
                unanswered.pop(indices[i], None)

            try:
                _ANSWER[kind](self, engine, list(unanswered.values()), report)
                return
            except RuntimeError as error:
                can_halve = _is_out_of_memory(error) and self.can_halve_passes
                if not can_halve or not self.budget.halve(LEAST_TOKENS):
                    raise
            logger.warning(
                "Out of memory on %s: passes now have at most %s tokens and %s sequences.",
                self._device,
                f"{self.budget.tokens:,}",
                self.budget.sequences,
            )
            clear_device_cache(garbage_collection=True)

    def _needs_engine(self, kind: str, requests: Sequence[Request]) -> bool:
        """Whether lm-eval's own code cannot answer these requests.

        It drops special tokens, and stops at a task's stop words in the reasoning. Nor does it say
        which text a token belongs to, as a policy with `tokens` asks.
        """
        if kind == "generate_until" and _reason(requests):
            return True
        return decides_by_tokens(self.model)

    def _check_encoding(self, kind: str, requests: Sequence[Request]) -> None:
        """Raise ConfigError for texts that cannot be scored, and warn of cut contexts: lm-eval's
        own code does neither."""
        if kind == "loglikelihood_rolling":
            assert self.encoder.prefix is not None  # raises the error of a tokenizer without one
        if kind == "loglikelihood":
            with self.warning_of_cuts(len(requests)):
                list(self.encoder.pairs([request.args for request in requests]))

    def _count_tokenization(self, kind: str, requests: int) -> None:
        """Count the answered requests whose tokens may surprise. They are the same in lm-eval.

        The tokenizer ends the text with a token, the beginning-of-text token is scored, or
        generation has no end token.
        """
        if self.encoder.adds_end:
            self.counted["eos_added"] += requests
        if kind == "loglikelihood_rolling" and self.encoder.adds_begin:
            self.counted["bos_scored"] += requests
        if kind == "generate_until" and not self._end_tokens:
            self.counted["no_end_token"] += requests

    @property
    def _end_tokens(self) -> set[int]:
        """The tokens that end generation: the model's and the tokenizer's."""
        end_tokens = self.model.generation_config.eos_token_id
        if not isinstance(end_tokens, list):
            end_tokens = [end_tokens]
        return {*end_tokens, self.eot_token_id} - {None}

    def encode_pair(self, context: str, continuation: str) -> Pair:
        """Token ids of a context and its continuation as they are scored. A long context loses its
        beginning."""
        return self.encoder.pair(context, continuation)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a whole prompt. An empty one is the beginning-of-text token."""
        return self.encoder.prompt(text, None)

    def count_tokens(self, kind: str, request: Request) -> int:
        """Number of tokens that a "loglikelihood" or "loglikelihood_rolling" request scores."""
        if kind == "loglikelihood":
            return len(self.encode_pair(*request.args)[1])
        if kind == "loglikelihood_rolling":
            windows = self.encoder.windows(request.args[0])
            return sum(len(continuation) for _, continuation in windows)
        raise ValueError(f"{kind} requests are not scored on tokens.")

    @contextmanager
    def warning_of_cuts(self, requests: int) -> Iterator[None]:
        """Warn of the requests that are encoded inside the context and are too long for the
        model."""
        before = self.encoder.cut
        yield
        cut = self.encoder.cut - before
        if cut:
            self.counted["cut_prompts"] += cut
            logger.warning(
                "%s of %s requests are longer than the model's input of %s tokens (max_length): "
                "the beginning of their prompts is not read.",
                f"{cut:,}",
                f"{requests:,}",
                f"{self.max_length:,}",
            )


def _require_separate_tokens(model: Any, quantized: str | None) -> None:
    """Raise ConfigError for a model that cannot keep the tokens of a pass apart.

    Args:
        quantized: `quantizes_passes` of the model.
    """
    require_masks(model)
    _require_unquantized(quantized)


def _require_unquantized(quantized: str | None) -> None:
    """Raise ConfigError for a model whose quantized layers read all tokens of a pass together.

    Args:
        quantized: `quantizes_passes` of the model.
    """
    if quantized:
        raise ConfigError(
            f"{quantized}: what shares a pass would change the numbers. Use method=base, or a "
            "checkpoint that is not quantized so."
        )


def _reason(requests: Sequence[Request]) -> bool:
    """Whether some replies have a reasoning before the answer."""
    return any(THINK_END in request.args[1] for request in requests)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)
