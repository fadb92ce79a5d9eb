"""A model of the caller's own under a method: text, tokens and log-likelihoods. The base class of
`RoE` and `C3PO`.

V = vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, overload

from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList, StopStringCriteria
from transformers.generation import GenerateDecoderOnlyOutput

from moe_lab.config.arguments import checked_ids, checked_settings, checked_texts, wrong
from moe_lab.engine.custom_generate import custom_generate, next_scores
from moe_lab.engine.forward.layers import output_head
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.recurrent import RecurrentEngine, RecurrentForward
from moe_lab.engine.sampling import unsupported
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.facts import LoadedModel, ModelFacts, routing_facts
from moe_lab.models.state import check_evaluation_mode
from moe_lab.routing import find_routers
from moe_lab.routing.hook import fixed_message, require_routers, why_fixed
from moe_lab.routing.passes import transformers_model


def loaded_model(
    model: Any, tokenizer: Any, needs_router: bool = True, needs_tokenizer: bool = True
) -> LoadedModel:
    """A causal language model of transformers and its tokenizer, with the facts of its
    configuration.

    Of a model in PEFT's wrapper it is the inner model, which has the adapters.

    Raises ConfigError for another object than a tokenizer. Raises ModelError for another object
    than such a model, for a model in training mode and, with `needs_router`, for one without a
    supported router or whose routing cannot be changed.
    """
    model = transformers_model(model)
    name = type(model).__name__
    if not hasattr(model, "generate") or output_head(model) is None:
        raise ModelError(
            f"{name} has no output head. Load it by AutoModelForCausalLM, and an image-and-text "
            "model by AutoModelForImageTextToText."
        )
    if needs_tokenizer and not _is_tokenizer(tokenizer):
        raise wrong(
            "tokenizer",
            tokenizer,
            "give the model's tokenizer, as AutoTokenizer.from_pretrained(...) loads it",
        )
    check_evaluation_mode(model)
    if needs_router:
        require_routers(model)
        reason = why_fixed(model)
        if reason:
            raise ModelError(fixed_message(name, reason))
    of_routing = routing_facts(model.config) | {"moe_layers": len(find_routers(model))}
    dtype = str(model.dtype).removeprefix("torch.")
    facts = ModelFacts(name=name, path=None, revision=None, commit=None, dtype=dtype, **of_routing)
    device = next(model.parameters()).device
    return LoadedModel(model, tokenizer, facts, device, load_seconds=0.0)


def _is_tokenizer(value: Any) -> bool:
    """Whether it has what this package needs of a tokenizer."""
    return all(hasattr(value, name) for name in ("encode", "decode", "pad_token_id"))


Ids: TypeAlias = Sequence[int] | Tensor
"""Token ids of one text: a list, or an int64 tensor [T]."""


def _is_one_text(ids: Ids | Sequence[Ids]) -> bool:
    """Whether these are the token ids of one text, and not of several (a list of lists or tensors,
    an int64 tensor [texts, T]). No ids at all are those of one text."""
    if isinstance(ids, Tensor):
        return ids.dim() != 2 or len(ids) == 0
    if isinstance(ids, list | tuple) and len(ids):
        return not hasattr(ids[0], "__len__")
    return True


@dataclass
class GeneratedTexts(GenerateDecoderOnlyOutput):
    """The output of transformers' `generate`, and the generated texts."""

    texts: list[str] | None = None


class LanguageModel:
    """A model of transformers whose tokens an engine of this package computes.

    The model is not changed: `model(...)`, and `model.generate` without `custom_generate`, give
    what they gave before.

    Args:
        keys: settings that `repr` shows.
    """

    def __init__(self, lm: EngineLM, **keys: Any):
        self._keys = keys
        self.model = lm.model
        self.tokenizer = lm.tokenizer
        self.lm = lm
        """The same for lm-eval: `lm_eval.simple_evaluate(model=roe.lm)`."""
        self.lm.label = type(self).__name__
        self._engine = lm.engine or RecurrentEngine(RecurrentForward(lm.model, lm.ensemble))

    def __repr__(self) -> str:
        keys = "".join(f", {key}={value}" for key, value in self._keys.items())
        return f"{type(self).__name__}({type(self.model).__name__}{keys})"

    @overload
    def generate(
        self,
        text: str | Sequence[str],
        *,
        seed: int | None = None,
        return_dict_in_generate: Literal[True],
        **options: Any,
    ) -> GeneratedTexts: ...
    @overload
    def generate(
        self, text: str, *, seed: int | None = None, num_return_sequences: int, **options: Any
    ) -> str | list[str]: ...
    @overload
    def generate(self, text: str, *, seed: int | None = None, **options: Any) -> str: ...
    @overload
    def generate(
        self, text: Sequence[str], *, seed: int | None = None, **options: Any
    ) -> list[str]: ...
    def generate(
        self, text: str | Sequence[str], *, seed: int | None = None, **options: Any
    ) -> str | list[str] | GeneratedTexts:
        """The text that is generated after a prompt, or after each of a batch of prompts.

        Args:
            text: a prompt, or a list of them. Of chat messages it is
                `tokenizer.apply_chat_template(messages, tokenize=False,
                add_generation_prompt=True)`.
            seed: of the sampled tokens and the routing noise of this call, in place of the object's
                own. Equal calls give equal texts, so that different samples take different seeds,
                or num_return_sequences.
            options: as `model.generate` takes them: max_new_tokens, do_sample, temperature, top_p,
                stop_strings, num_return_sequences, streamer, logits_processor, generation_config,
                ...

        Returns a string for a string, else a list of strings; with num_return_sequences=k a list
        with k for each prompt in turn. A stop string ends the text and stays in it, as in
        transformers.

        With return_dict_in_generate=True it is the output of transformers: `sequences` (int64 [B,
        S], prompts included), with output_scores=True `scores` and with output_logits=True
        `logits`: one float32 [B, V] for each new token, the log of the averaged distribution (the
        logits, of one sample) after and before the logits processors. `texts` has the generated
        texts.

        Raises ConfigError for an option that is not supported, and what transformers raises for one
        that is unknown or impossible.
        """
        texts = checked_texts("text", text)
        if seed is not None:
            checked_settings(seed=seed)  # raises ConfigError for a wrong one
        if options.get("assistant_model") is not None:
            raise ConfigError(
                "assistant_model is not supported: every token is that of the ensemble. Leave it "
                "out."
            )
        config = self._generation_config(options)
        if config.stop_strings:  # transformers hands no tokenizer to custom_generate
            options["stopping_criteria"] = self._with_stop_strings(options, config.stop_strings)
            options["stop_strings"] = None
        if config.pad_token_id is None:
            options["pad_token_id"] = self.tokenizer.pad_token_id

        prompts = [self.lm.encode_prompt(prompt) for prompt in texts]
        padded = self.tokenizer.pad(
            {"input_ids": prompts}, padding_side="left", return_tensors="pt"
        )
        inputs = padded.to(self.model.device)
        copies = config.num_return_sequences
        text_of_each = [prompt for prompt in texts for _ in range(copies)]
        # transformers calls this object (`__call__`) in place of its own loop
        generate = partial(self, streamer=options.get("streamer"), texts=text_of_each, seed=seed)
        output = self.model.generate(**inputs, custom_generate=generate, **options)

        sequences = output if isinstance(output, Tensor) else output.sequences
        new_tokens = sequences[:, inputs["input_ids"].shape[1] :].tolist()
        answers = []
        for number, new_ids in enumerate(new_tokens):
            answers.append(self.lm.new_text(prompts[number // copies], new_ids))
        if config.return_dict_in_generate:
            return GeneratedTexts(**output, texts=answers)
        if isinstance(text, str) and len(answers) == 1:
            return answers[0]
        return answers

    def _with_stop_strings(self, options: dict[str, Any], stop_strings: Any) -> Any:
        """The stopping criteria of `options`, and one that stops at the strings."""
        criteria = list(options.get("stopping_criteria") or ())
        criteria.append(StopStringCriteria(self.tokenizer, stop_strings))
        return StoppingCriteriaList(criteria)

    def next_token_logprobs(self, ids: Ids | Sequence[Ids]) -> Tensor:
        """float32 [V]: log-probabilities of the token after `ids`; [texts, V] for a list of texts.

        They are -inf where a probability is below float32's range.
        """
        is_one_text = _is_one_text(ids)
        texts: Any = [ids] if is_one_text else ids
        vocabulary = self.model.get_input_embeddings().num_embeddings
        prompts = []
        for text in texts:
            prompts.append(checked_ids("ids", text, vocabulary, self.lm.max_length))
        with self.lm.running():
            scores = next_scores(self._engine, prompts, self.tokenizer.batch_decode(prompts))
        logprobs = scores.log_softmax(dim=-1)
        return logprobs[0] if is_one_text else logprobs

    @overload
    def loglikelihood(self, context: str, continuation: str) -> float: ...
    @overload
    def loglikelihood(
        self, context: str, continuation: list[str] | tuple[str, ...]
    ) -> list[float]: ...
    @overload
    def loglikelihood(
        self, context: list[str] | tuple[str, ...], continuation: str | list[str] | tuple[str, ...]
    ) -> list[float]: ...
    def loglikelihood(
        self, context: str | Sequence[str], continuation: str | Sequence[str]
    ) -> float | list[float]:
        """Log-probability of a continuation after a context, in nats, as lm-eval asks for it.

        Args:
            context: a text, or one for each continuation. "" stands for the beginning-of-text
                token. A context that is too long for the model loses its beginning.
            continuation: a text, blank in front included, or a list of them.

        Returns a number for two strings, else a list with one for each continuation.
        """
        continuations = checked_texts("continuation", continuation)
        contexts = checked_texts("context", context)
        if isinstance(context, str):
            contexts *= len(continuations)
        if len(contexts) != len(continuations):
            raise ConfigError(
                f"loglikelihood got {len(contexts)} contexts and {len(continuations)} "
                "continuations: give one context for each continuation, or one for all."
            )
        if "" in continuations:
            raise wrong(
                "continuation", continuation, "an empty text has no log-likelihood; leave it out"
            )
        requests = [Request(pair) for pair in zip(contexts, continuations, strict=True)]
        answers: dict[int, tuple[float, bool]] = {}
        self.lm.answer("loglikelihood", requests, answers.__setitem__)
        values = []
        for number in range(len(requests)):
            value, _ = answers[number]
            values.append(value)
        if isinstance(continuation, str) and isinstance(context, str):
            return values[0]
        return values

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        texts: Sequence[str] | None = None,
        seed: int | None = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """The decoding loop of `model.generate(..., custom_generate=roe)`. `texts` are the prompts
        as texts, if known.

        `custom_generate=functools.partial(roe, seed=5)` has the noise and the samples of another
        seed.

        transformers passes neither `streamer` nor `tokenizer` to such a loop. `roe.generate` takes
        both `streamer` and `stop_strings`; with `model.generate` write
        `custom_generate=functools.partial(roe, streamer=streamer)` and
        `stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)]`.

        Raises ValueError for what it does not support: beams, a cache that is given. An assistant
        is not used.
        """
        if transformers_model(model) is not self.model:
            raise ValueError("custom_generate is that of another model.")
        if seed is not None:
            checked_settings(seed=seed)  # raises ConfigError for a wrong one
        before = self.lm.seed
        with self.lm.running():
            if seed is not None:
                self._set_seed(seed)
            try:
                return custom_generate(
                    self._engine,
                    model,
                    input_ids,
                    logits_processor,
                    stopping_criteria,
                    generation_config,
                    seed=self.lm.seed,
                    texts=texts,
                    tokenizer=self.tokenizer,
                    streamer=streamer,
                    model_kwargs=model_kwargs,
                )
            finally:
                if seed is not None:
                    self._set_seed(before)

    def _set_seed(self, seed: int) -> None:
        """Use another seed from now on."""
        self.lm.seed = seed

    def _generation_config(self, options: dict[str, Any]) -> GenerationConfig:
        """`options`, their `generation_config` and the model's own, merged as `model.generate`
        merges them.

        Raises ConfigError for an option that is not supported.
        """
        settings = dict(options)
        generation_config = settings.pop("generation_config", None)
        config, _ = self.model._prepare_generation_config(generation_config, **settings)
        refused = unsupported(config)
        if refused:
            raise ConfigError(f"{refused} Leave it out.")
        return config
