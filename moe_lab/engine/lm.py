"""The engine as an lm-eval model.

`EngineLM` is an lm-eval model: `lm_eval.simple_evaluate(model=EngineLM(model, tokenizer), tasks=["gsm8k"])` works. It
extends lm-eval's `hf` model, and has its tokenization, prompts, chat templates and truncation.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from moe_lab.config.progress import Progress
from moe_lab.engine.engine import Engine, KVEngine
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward, Observer
from moe_lab.engine.forward.layers import kv_cache_obstacle, reads_the_batch, require_masks
from moe_lab.engine.forward.quantized import quantizes_passes
from moe_lab.engine.forward.rotary import RotaryHooks
from moe_lab.engine.hf import THINK_END, CountedHF, Encoder, OnAnswer, Pair, Request
from moe_lab.engine.pass_size import LEAST_TOKENS, pass_budget
from moe_lab.engine.recurrent import RecurrentEngine, RecurrentForward
from moe_lab.engine.sampling import (
    Decoding,
    GenerationState,
    Sampler,
    StoppingCriteria,
    generation_config,
)
from moe_lab.engine.scoring import Scores, ScoringRequest
from moe_lab.errors import ConfigError
from moe_lab.models.facts import leave_out_cudnn_attention
from moe_lab.models.lm_eval_internals import answers_for_lm_eval, request_arguments
from moe_lab.models.output_flags import expected_flags
from moe_lab.models.state import check_unchanged, state_of
from moe_lab.routing.hook import opened, require_routers
from moe_lab.routing.noise import document_key

logger = logging.getLogger("moe_lab")


class EngineLM(CountedHF):
    """A causal language model for lm-eval that computes a shared prefix once.

    `engine` runs the model. It is a `KVEngine` where the layers keep keys and values alone, else a `RecurrentEngine`
    for ensembles. For a base model with other layers, or whose quantized layers read all tokens of a pass, it is None,
    and lm-eval's own code runs the model.

    Args:
        model, tokenizer: of transformers. The model keeps its device and dtype.
        ensemble: routing samples of each token; the base model by default.
        batch_size: maximum number of sequences per forward pass. "auto": limited by a number of tokens only, which
            limits every pass. 1 where padding or other texts would change scores (expert choice, quantized layers).
        max_batch_size: maximum number of sequences with "auto".
        max_length: maximum length of an input in tokens. Longer inputs lose their beginning.
        add_bos_token: as in lm-eval.
        seed: seed of sampling, for `gen_kwargs` that sample.
        reuse: cache the clean activations of all requests, within a share of the free memory, for later calls of
            `answer` with other temperatures (`set_ensemble`). Answers are the same within float error. Noise of any
            later ensemble begins at `ensemble.first_noisy` or later.
        progress: whether a progress bar is shown.
        make_engine: called with this LM once its budget is known. Returns the engine to use instead.
        counts_tokens: whether something counts the tokens of each pass. lm-eval's own code does not say what it pads:
            models without a `KVEngine` then run one request at a time.

    The ensemble is that of lm-eval's requests. `lm.model`, and with it `lm.model.generate`, is the base model:
    `moe_lab.RoE` generates with an ensemble.

    Raises ModelError for an ensemble on a model without a supported router, ConfigError for one with flash attention or
    with layers that quantize all tokens of a pass together.
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
        if self.ensemble.n > 1:
            require_routers(model)
        quantized = quantizes_passes(model)
        if make_engine or not self.ensemble.plain:
            require_masks(model)
            if quantized:
                raise ConfigError(
                    f"{quantized}: what shares a pass would change the numbers. Use method=base, or a checkpoint that "
                    "is not quantized so."
                )
        self.progress = progress
        self.seed = seed
        self.session_info: dict[str, Any] = {}
        """JSON values that a method stores with the answers (`Method.open`)."""
        self._rotary = RotaryHooks(model)
        if reads_the_batch(model) or quantized:
            batch_size = 1
        auto = str(batch_size).startswith("auto")
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=(max_batch_size or 8) if auto else int(batch_size),
            max_length=max_length,
            add_bos_token=add_bos_token,
        )
        self._device = next(model.parameters()).device
        self.budget = pass_budget(model, max_batch_size if auto else int(batch_size))
        self._encoder = Encoder(self)
        self._observer = Observer()
        self._kept: dict[str, GenerationState] | None = None
        self._state = state_of(model)
        self.engine: Engine | None = None
        if make_engine:
            self.engine = make_engine(self)
        elif obstacle := kv_cache_obstacle(model) or quantized:
            alone = counts_tokens and not quantized  # quantized layers have no padding anyway
            if alone or not self.ensemble.plain:
                self.engine = RecurrentEngine(RecurrentForward(model, self.ensemble))
            logger.warning(
                "%s does not run over the shared KV cache, because %s. It runs %s, which is slower.",
                type(model).__name__,
                obstacle,
                "one request at a time" if self.engine else "by lm-eval's own code",
            )
        else:
            self.engine = KVEngine(EnsembleForward(model, self.ensemble), self.budget, reuse)

    label = "moe_lab.lm"
    """Name of this LM in the messages of `running`."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside the context this LM runs the model.

        Raises RoutingError inside another LM or `record`, and ModelError for a model in training mode, or whose
        device, routers or adapters are others than when this LM was made.
        """
        check_unchanged(self.model, self._state, self.label)
        with opened(self.model, self.label, alone=True), expected_flags(self.model.config):
            yield

    def set_ensemble(self, ensemble: Ensemble) -> None:
        """Use another ensemble from now on; `cost` keeps counting.

        Raises ValueError where the ensemble's first noisy layer is before that of the cached activations.
        """
        assert self.engine is not None
        self.engine.set_ensemble(ensemble)
        self._counted.update(self._decisions)
        self.ensemble = ensemble

    @contextmanager
    def keeping_tokens(self) -> Iterator[dict[str, GenerationState]]:
        """Inside the context: the tokens generated for each prompt, by its text."""
        self._kept = {}
        try:
            yield self._kept
        finally:
            self._kept = None

    def observe(self, observer: Observer) -> None:
        """Call `observer` for all passes and requests from now on. For base models without `reuse`.

        Raises ConfigError for a model without a `KVEngine`.
        """
        if not isinstance(self.engine, KVEngine):
            raise ConfigError(
                f"metrics=expert: the tokens of {type(self.model).__name__} cannot be assigned to examples. Its layers "
                "keep more than keys and values, so lm-eval's own code runs it. Leave metrics=expert out."
            )
        observer.kind = self._rotary.kind
        self._observer = self.engine.forward.observer = observer

    @property
    def cost(self) -> dict[str, int]:
        """Counts of all work so far.

        tokens_in: tokens put through the model (routing samples included, padding excluded). tokens_out: generated
        tokens. near_ties: greedy tokens whose runner-up was within the dtype's rounding (`sampling.near`), so that
        other shapes or machines may choose it. cut_prompts: requests whose prompt was longer than the model's input and
        lost its beginning. cut_reasoning: replies that ended in the reasoning. decoded_in_context: answers whose text
        is not that of their tokens alone (`moe_lab.models.new_text`). eos_added, bos_scored, no_end_token: requests
        that the tokenizer adds an end token to, texts whose added beginning token is scored, and replies that no token
        ends. changed_decisions, noisy_decisions: see `GumbelTopK.counts`.
        """
        cost = Counter(self._counted)
        cost.update(self._decisions)
        if self.engine:
            cost["tokens_in"] += self.engine.tokens_in
        return dict(cost)

    @property
    def _decisions(self) -> dict[str, int]:
        """Counts of the current ensemble."""
        if not self.ensemble.routing:
            return {}
        return self.ensemble.routing.counts()

    # lm-eval's interface -----------------------------------------------------------------------------------------

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        return self._answers("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        return self._answers("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return self._answers("generate_until", requests)

    def _answers(self, kind: str, instances: list[Any]) -> list[Any]:
        """Number the answers to a prompt: lm-eval requests k of them by repeating the same instance."""
        seen: Counter[int] = Counter()
        requests = []
        for instance in instances:
            requests.append(Request(request_arguments(instance), seen[id(instance)]))
            seen[id(instance)] += 1
        answers: dict[int, Any] = {}
        self.answer(kind, requests, answers.__setitem__)
        return answers_for_lm_eval(kind, [answers[i] for i in range(len(requests))])

    # The engine --------------------------------------------------------------------------------------------------

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        """Answer all requests; `on_answer(index, answer)` is called as soon as a request is answered, in any order.

        Args:
            kind: "loglikelihood" -> (log-likelihood, whether greedy), "loglikelihood_rolling" -> log-likelihood,
                "generate_until" -> text.
        """
        run = {
            "loglikelihood": self._score_pairs,
            "loglikelihood_rolling": self._score_texts,
            "generate_until": self._generate,
        }[kind]
        if kind == "generate_until" and any(THINK_END in request.args[1] for request in requests):
            # lm-eval's own code drops special tokens, and stops at a task's stop words in the reasoning
            self.engine = self.engine or RecurrentEngine(
                RecurrentForward(self.model, self.ensemble)
            )
        with (
            self.running(),
            Progress(len(requests), kind, "request", shown=self.progress) as progress,
        ):
            left = dict(enumerate(requests))

            def report(index: int, answer: Any) -> None:
                on_answer(index, answer)
                left.pop(index, None)
                progress.update()

            def run_left() -> None:
                indices = list(left)
                assert self.engine is not None
                run(self.engine, list(left.values()), lambda i, answer: report(indices[i], answer))

            while self.engine and left:
                try:
                    run_left()
                    break
                except RuntimeError as error:
                    if not (
                        isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)
                    ):
                        raise
                    if not self.budget.halve(LEAST_TOKENS):
                        raise
                    logger.warning(
                        "Out of memory on %s: passes now have at most %s tokens and %s sequences.",
                        *(self._device, f"{self.budget.tokens:,}", self.budget.sequences),
                    )
                clear_device_cache(garbage_collection=True)
            if not self.engine:
                if kind == "loglikelihood_rolling":
                    assert self._encoder.prefix is not None  # or a ConfigError
                if kind == "loglikelihood":
                    with self._warning_of_cuts(len(requests)):
                        for _ in self._encoder.pairs([request.args for request in requests]):
                            pass
                self.answer_by_hf(kind, requests, report)
            self._count_tokenization(kind, len(requests))

    def _count_tokenization(self, kind: str, requests: int) -> None:
        """Count the answered requests whose tokens are others than one expects, as they are in lm-eval, too."""
        counted = {
            "eos_added": self._encoder.adds_end,
            "bos_scored": kind == "loglikelihood_rolling" and self._encoder.adds_begin,
            "no_end_token": kind == "generate_until" and not self._end_tokens,
        }
        for name, holds in counted.items():
            if holds:
                self._counted[name] += requests

    @property
    def _end_tokens(self) -> set[int]:
        """The tokens that end generation: the model's and the tokenizer's."""
        ids = self.model.generation_config.eos_token_id
        ids = ids if isinstance(ids, list) else [ids]
        return {*ids, self.eot_token_id} - {None}

    def encode_pair(self, context: str, continuation: str) -> Pair:
        """Token ids of a context and its continuation as they are scored. A long context loses its beginning."""
        return self._encoder.pair(context, continuation)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a whole prompt. An empty one is the beginning-of-text token."""
        return self._encoder.prompt(text, None)

    def count_tokens(self, kind: str, request: Request) -> int:
        """Number of tokens that a "loglikelihood" or "loglikelihood_rolling" request scores."""
        if kind == "loglikelihood":
            return len(self.encode_pair(*request.args)[1])
        if kind == "loglikelihood_rolling":
            return sum(
                len(continuation) for _, continuation in self._encoder.windows(request.args[0])
            )
        raise ValueError(f"{kind} requests are not scored on tokens.")

    def _score_pairs(self, engine: Engine, requests: Sequence[Request], report: OnAnswer) -> None:
        with self._warning_of_cuts(len(requests)):
            pairs = list(self._encoder.pairs([request.args for request in requests]))
        # the texts of a request have the same rotary embeddings
        by_context: dict[tuple[tuple[int, ...], int], dict[tuple[int, ...], list[int]]] = {}
        for i, (context, continuation) in enumerate(pairs):
            kind = self._rotary.kind(len(context) + len(continuation) - 1)
            by_context.setdefault((context, kind), {}).setdefault(continuation, []).append(i)
        scoring_requests = []
        for (context, _), continuations in by_context.items():
            texts = [requests[indices[0]].args for indices in continuations.values()]
            scoring_requests.append(
                ScoringRequest(
                    context,
                    list(continuations),
                    document_key(context),
                    text=texts[0][0],
                    texts=[continuation for _, continuation in texts],
                )
            )

        requesters = [list(continuations.values()) for continuations in by_context.values()]

        def on_scores(index: int, scores: Scores) -> None:
            for answer, indices in zip(scores, requesters[index], strict=True):
                for i in indices:
                    report(i, answer)
                    self._observer.read("loglikelihood", requests[i], pairs[i][0], pairs[i][1][:-1])

        engine.score(scoring_requests, on_scores)

    def _score_texts(self, engine: Engine, requests: Sequence[Request], report: OnAnswer) -> None:
        """Score each text in windows of at most `max_length` tokens. A text is answered after its last window."""
        windows: list[ScoringRequest] = []
        text_of: list[int] = []
        for i, request in enumerate(requests):
            own = [
                ScoringRequest(context, [continuation], document_key([*context, *continuation]))
                for context, continuation in self._encoder.windows(request.args[0])
            ]
            windows += own
            text_of += [i] * len(own)
        missing = Counter(text_of)
        total = [0.0] * len(requests)
        for i in set(range(len(requests))) - set(missing):
            report(i, 0.0)

        def on_scores(index: int, scores: Scores) -> None:
            i = text_of[index]
            total[i] += scores[0][0]
            context, (continuation,) = windows[index].context, windows[index].continuations
            self._observer.read("loglikelihood_rolling", requests[i], context, continuation[:-1])
            missing[i] -= 1
            if not missing[i]:
                report(i, total[i])

        if windows:
            engine.score(windows, on_scores)

    def _generate(self, engine: Engine, requests: Sequence[Request], report: OnAnswer) -> None:
        """Generate for all requests with the same generation options together."""
        by_options: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            by_options.setdefault(repr(sorted(request.args[1].items())), []).append(i)
        for indices in by_options.values():
            self._generate_alike(engine, {i: requests[i] for i in indices}, report)

    def _generate_alike(
        self, engine: Engine, requests: dict[int, Request], report: OnAnswer
    ) -> None:
        options = normalize_gen_kwargs(next(iter(requests.values())).args[1], self.max_gen_toks)
        end_text = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        stop = handle_stop_sequences(options.pop("until", None), eos=end_text)
        think_end = options.pop(THINK_END, None)
        max_gen_toks = options.pop("max_gen_toks")
        room = self.max_length - max_gen_toks
        if room <= 0:
            raise ConfigError(
                f"max_gen_toks={max_gen_toks} leaves no room for a prompt: the model reads at most "
                f"{self.max_length} tokens. Lower max_gen_toks in gen_kwargs, or raise max_length."
            )
        if not options["do_sample"]:
            options.pop("temperature", None)
        config = generation_config(self.model, options)
        max_length = options.get("max_length")
        if config.max_new_tokens is None and max_length is None:
            config.max_new_tokens = max_gen_toks
        with self._warning_of_cuts(len(requests)):
            prompts = [self._encoder.prompt(request.args[0], room) for request in requests.values()]
        if config.max_new_tokens is None:
            max_new_tokens = self._most_new_tokens(prompts, max_length)
        else:  # it takes precedence in transformers, also where generation_config.json has it
            max_new_tokens = config.max_new_tokens
            max_length = None
        states = [
            GenerationState(i, prompt, document_key(prompt), request.repeat, request.args[0])
            for (i, request), prompt in zip(requests.items(), prompts, strict=True)
        ]

        def on_done(state: GenerationState) -> None:
            self._counted["tokens_out"] += len(state.generated)
            if think_end is None:
                text = self.decode_answer(state.prompt, state.generated)
            else:
                reply = self.tok_decode(state.generated, skip_special_tokens=False)
                text = self._after_reasoning(reply, think_end)
            if self._kept is not None:
                self._kept[state.text] = state
            report(state.index, postprocess_generated_text(text, stop, None))
            read = state.generated[:-1]
            self._observer.read("generate_until", requests[state.index], state.prompt, read)

        sampler = Sampler(self.model, config, self.seed)
        # a task's stop words may be in the reasoning, too
        stop_texts = stop
        if think_end is not None:
            stop_texts = [end_text]
        stopping = StoppingCriteria(self.tokenizer, stop_texts, config, max_length)
        cut = self._counted["cut_reasoning"]
        engine.generate(states, Decoding(sampler, stopping, max_new_tokens), on_done)
        self._counted["near_ties"] += sampler.near_ties
        if cut := self._counted["cut_reasoning"] - cut:
            logger.warning(
                "%s of %s replies end before %s, within %s new tokens: their answers are empty. "
                "Allow more with gen_kwargs=max_gen_toks=<n>.",
                *(f"{cut:,}", f"{len(states):,}", think_end, f"{max_new_tokens:,}"),
            )

    def _most_new_tokens(self, prompts: Sequence[Sequence[int]], max_length: int) -> int:
        """The new tokens after the shortest prompt, with `max_length` tokens of prompt and answer."""
        longest = max(map(len, prompts))
        if longest >= max_length:
            raise ConfigError(
                f"max_length={max_length} in gen_kwargs counts the prompt, and one has {longest} tokens. "
                "Use max_gen_toks=<n>, which counts new tokens alone."
            )
        return max_length - min(map(len, prompts))

    def _after_reasoning(self, reply: str, think_end: str) -> str:
        """The answer in a reply: the text after the last `think_end`, up to a special token; empty without one.

        lm-eval takes the whole reply without one, and so what the model thought as its answer.
        """
        _, found, answer = reply.rpartition(think_end)
        self._counted["cut_reasoning"] += not found
        special = [
            str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special
        ]
        return postprocess_generated_text(answer, special, None).lstrip() if found else ""

    @contextmanager
    def _warning_of_cuts(self, requests: int) -> Iterator[None]:
        """Warn of the requests that are encoded inside the context and are too long for the model."""
        before = self._encoder.cut
        yield
        if cut := self._encoder.cut - before:
            self._counted["cut_prompts"] += cut
            logger.warning(
                "%s of %s requests are longer than the model's input of %s tokens (max_length): the beginning of "
                "their prompts is not read.",
                *(f"{number:,}" for number in (cut, requests, self.max_length)),
            )
