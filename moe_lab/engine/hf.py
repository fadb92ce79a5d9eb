"""lm-eval's own `hf` model with a count of tokens, and the tokenization of its requests."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import configure_pad_token, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from moe_lab.engine.forward.layers import reads_padding
from moe_lab.engine.forward.rotary import RotaryHooks, forget_lengths
from moe_lab.engine.sampling import generation_config, has_processors
from moe_lab.errors import ConfigError
from moe_lab.models.lm_eval_internals import answers_of_lm_eval, instance_of
from moe_lab.models.new_text import NewText

THINK_END = "think_end_token"
"""Key of a generation request's settings: the text that ends the reasoning (lm-eval has it as a
model's argument)."""
PORTION = 64
"""Number of requests passed to lm-eval's code at a time. Answers are reported after each
portion."""
TOKENIZED = 128
"""Number of requests whose texts are tokenized together. The tokenizer takes some 100 bytes for
each token."""


class Request(NamedTuple):
    """A request of lm-eval: its arguments, and the index of this answer among several to it."""

    args: tuple
    """(context, continuation), (text,) that is scored whole, or (prompt, settings) of a
    generation."""
    repeat: int = 0


OnAnswer = Callable[[int, Any], None]
"""(index of the request, its answer)"""


class CountedHF(HFLM):
    """lm-eval's `hf` model with a count of tokens. It reports answers portion by portion."""

    def __init__(self, **options: Any):
        self.counted = Counter(tokens_in=0, tokens_out=0)
        # lm-eval warns that arguments for loading a model are ignored, although none are given.
        logging.getLogger("lm_eval.models.huggingface").addFilter(_of_a_given_model)
        # In the model's dtype log-probabilities are coarse: bfloat16 has steps of 1/8 at -20.
        super().__init__(softmax_dtype="float32", backend="causal", **options)
        self._tokenized: dict[str, list[int]] = {}
        self.new_text = NewText(self.tokenizer)
        self._decoded_next: deque[list[int]] = deque()
        """Prompts of the generated tokens that lm-eval's own code decodes next."""

    def answer_by_hf(self, kind: str, requests: Sequence[Request], report: OnAnswer) -> None:
        """Answer all requests.

        Prompts are answered one by one where answers are sampled, or where the model or logits
        processors might read padding: each answer then depends only on its prompt and on which of
        several answers it is.

        Raises ConfigError for a generation setting that is not supported.
        """
        one_by_one = False
        if kind == "generate_until":
            has_processors = self._has_processors(requests)
            one_by_one = has_processors or reads_padding(self.model) or _sampled(requests)
        if RotaryHooks(self.model).depends:
            self.batch_size_per_gpu = 1
        size = 1 if one_by_one else PORTION
        for start in range(0, len(requests), size):
            portion = requests[start : start + size]
            instances = [instance_of(kind, request.args) for request in portion]
            if one_by_one:
                key = repr((portion[0].args[0], portion[0].repeat)).encode()
                torch.manual_seed(int.from_bytes(blake2b(key, digest_size=8).digest(), "little"))
            with torch.inference_mode():
                answers = getattr(HFLM, kind)(self, instances, disable_tqdm=True)
            for i, answer in enumerate(answers_of_lm_eval(kind, answers), start):
                report(i, answer)

    def _has_processors(self, requests: Sequence[Request]) -> bool:
        """Whether some request has logits processors. Raises ConfigError for an unsupported setting
        of any."""
        some_have = False
        distinct_options = {repr(request.args[1]): request.args[1] for request in requests}
        for options in distinct_options.values():
            settings = normalize_gen_kwargs(options)
            for name in ("until", "max_gen_toks", THINK_END):
                settings.pop(name, None)
            if not settings["do_sample"]:
                settings.pop("temperature", None)
            config = generation_config(self.model, settings)
            if has_processors(self.model, config):
                some_have = True
        return some_have

    @contextmanager
    def tokenized(self, texts: Iterable[str]) -> Iterator[None]:
        """Inside the context `tok_encode` knows these texts, which the tokenizer reads in threads,
        each one once."""
        begin = None
        if self.prefix_token_id is not None:
            begin = self.tokenizer.decode(self.prefix_token_id)
        usual: list[str] = []
        with_begin: list[str] = []
        for text in dict.fromkeys(texts):
            if begin is not None and text.startswith(begin):
                with_begin.append(text)
            else:
                usual.append(text)
        usual_options = {}
        if self.add_bos_token is not None:
            usual_options["add_special_tokens"] = self.add_bos_token
        self._tokenize(usual, usual_options)
        self._tokenize(with_begin, {"add_special_tokens": False})
        try:
            yield
        finally:
            self._tokenized.clear()

    def _tokenize(self, texts: list[str], options: dict[str, bool]) -> None:
        """Keep the token ids of these texts for `tok_encode`."""
        if texts:
            ids = self.tokenizer(texts, **options).input_ids
            self._tokenized.update(zip(texts, ids, strict=True))

    def tok_encode(self, string: str, *args: Any, **options: Any) -> list[int]:
        """The token ids of a text; those of a text inside `tokenized` are known already."""
        if not args and not options and string in self._tokenized:
            return self._tokenized[string]
        if not args and not options and self.prefix_token_id is None:
            # lm-eval would look for the token at the begin of the text, which this tokenizer does
            # not have
            options = {"add_special_tokens": self.add_bos_token is not False}
        return super().tok_encode(string, *args, **options)

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> Any:
        """The text of tokens; None for None, the end token of a tokenizer without one, which
        lm-eval asks for.

        lm-eval's own code calls it for every answer, which it would decode alone.
        """
        if tokens is None:
            return None
        if self._decoded_next:
            return self.decode_answer(self._decoded_next.popleft(), tokens)
        return super().tok_decode(tokens, skip_special_tokens=skip_special_tokens)

    def decode_answer(self, prompt: Sequence[int], new: Sequence[int]) -> str:
        """The text of new tokens after their prompt. Answers that lm-eval decodes otherwise are
        counted."""
        text = self.new_text(prompt, new)
        text_alone = self.tokenizer.decode(new, skip_special_tokens=True)
        self.counted["decoded_in_context"] += int(text != text_alone)
        return text

    def _loglikelihood_tokens(self, requests: list, **kwargs: Any) -> list[tuple[float, bool]]:
        """lm-eval's own, counting the tokens that the model reads."""
        for _, context, continuation in requests:
            length = len(context) + len(continuation) - 1
            self.counted["tokens_in"] += min(length, self.max_length)
        return super()._loglikelihood_tokens(requests, **kwargs)

    def _model_call(self, inps: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """lm-eval's own, with rotary embeddings that depend on no earlier text."""
        forget_lengths(self.model)
        return super()._model_call(inps, **kwargs)

    def _model_generate(self, context: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """lm-eval's own, counting the tokens that the model reads and generates."""
        forget_lengths(self.model)
        generated = super()._model_generate(context, tokenizer=self.tokenizer, **kwargs)
        new_tokens = generated.shape[1] - context.shape[1]
        real_BS = kwargs["attention_mask"].bool()
        self._decoded_next.clear()
        for ids_S, real_S in zip(context, real_BS, strict=True):
            self._decoded_next.append(ids_S[real_S].tolist())
        prompt_tokens = int(kwargs["attention_mask"].sum())
        read_per_sequence = new_tokens - 1  # the model does not read the last new token
        self.counted["tokens_in"] += prompt_tokens + read_per_sequence * len(context)
        self.counted["tokens_out"] += new_tokens * len(context)
        return generated


def _sampled(requests: Sequence[Request]) -> bool:
    """Whether some answers are sampled."""
    return any(normalize_gen_kwargs(request.args[1])["do_sample"] for request in requests)


def _of_a_given_model(record: logging.LogRecord) -> bool:
    """A filter of lm-eval's log: False for its warning about a model that it did not load
    itself."""
    return "`pretrained`" not in record.getMessage()


Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a context and of its continuation."""


class Encoder:
    """The tokenization of an `HFLM`. `pairs` takes a `CountedHF`."""

    def __init__(self, lm: Any):
        self.lm = lm
        self.cut = 0
        """Contexts and prompts so far that lost their beginning."""

    @cached_property
    def adds_begin(self) -> bool:
        """Whether the tokenizer puts a beginning token in front of a text."""
        begin = self.lm.prefix_token_id
        return self._with_special[0] == begin and self._alone[0] != begin

    @cached_property
    def adds_end(self) -> bool:
        """Whether the tokenizer puts an end token after a text."""
        end = self.lm.eot_token_id
        return self._with_special[-1] == end and self._alone[-1] != end

    @cached_property
    def _with_special(self) -> list[int]:
        """The tokens of a letter, with those that the tokenizer puts around a text."""
        return list(self.lm.tok_encode("a"))

    @cached_property
    def _alone(self) -> list[int]:
        """The tokens of the letter alone."""
        return list(self.lm.tok_encode("a", add_special_tokens=False))

    @property
    def prefix(self) -> int:
        """The token in front of a text without a context. Raises ConfigError if the tokenizer has
        none."""
        if self.lm.prefix_token_id is None:
            raise ConfigError(
                "The tokenizer has neither a beginning nor an end token, after which a text "
                "without a context would be read.\nUse a tokenizer that has one "
                "(model.tokenizer=), or a task whose requests have contexts."
            )
        return int(self.lm.prefix_token_id)

    def pairs(self, texts: Sequence[tuple[str, str]]) -> Iterator[Pair]:
        """`pair` of each context and continuation."""
        for start in range(0, len(texts), TOKENIZED):
            portion = texts[start : start + TOKENIZED]
            # what `_encode_pair` tokenizes: spaces at the end of a context belong to the
            # continuation
            tokenized_texts = []
            for context, continuation in portion:
                tokenized_texts += [context.rstrip(), context + continuation]
            with self.lm.tokenized(tokenized_texts):
                for context, continuation in portion:
                    yield self.pair(context, continuation)

    def pair(self, context: str, continuation: str) -> Pair:
        """Token ids of a context and its continuation. A context that is too long loses its
        beginning.

        Raises ConfigError for a continuation that is empty or longer than the model's input.
        """
        if context != "":
            return self._truncated(*self.lm._encode_pair(context, continuation))
        ids = self.lm.tok_encode(continuation, add_special_tokens=False)
        if ids[0] == self.prefix:
            return self._truncated(ids[:1], ids[1:])
        return self._truncated([self.prefix], ids)

    def windows(self, text: str) -> list[Pair]:
        """A text in windows of at most `max_length` tokens: (context, tokens to score)."""
        windows = get_rolling_token_windows(
            token_list=self.lm.tok_encode(text),
            prefix_token=self.prefix,
            max_seq_len=self.lm.max_length,
            context_len=1,
        )
        return [self._truncated(*make_disjoint_window(window)) for window in windows]

    def prompt(self, text: str, room: int | None) -> list[int]:
        """The last `room` tokens of a prompt; None: all. An empty prompt is the beginning-of-text
        token."""
        (ids,), _ = self.lm.tok_batch_encode([text], truncation=self.lm.truncation)
        if room is not None and len(ids) > room:
            self.cut += 1
            ids = ids[-room:]
        return ids.tolist() or [self.prefix]

    def _truncated(self, context: list[int], continuation: list[int]) -> Pair:
        """The pair with as much of the context's end as fits. The continuation's last token is
        predicted, not read."""
        most = self.lm.max_length
        if not 0 < len(continuation) <= most:
            raise ConfigError(
                f"A continuation to score has {len(continuation)} tokens; it must have between 1 "
                f"and {most} (max_length)."
            )
        room = most + 1 - len(continuation)
        if len(context) > room:
            self.cut += 1
        return tuple(context[-room:]), tuple(continuation)


def encoder_of(
    model_config: Any, tokenizer: Any, max_length: int | None, add_bos_token: bool | None
) -> Encoder:
    """The tokenization of a model without its weights."""
    lm: Any = object.__new__(CountedHF)
    lm._tokenized = {}
    lm._max_length = max_length
    lm._model = SimpleNamespace(config=model_config)
    lm.tokenizer = configure_pad_token(tokenizer, model_config=model_config)
    lm.add_bos_token = add_bos_token
    lm.backend = "causal"
    lm.truncation = False
    lm.custom_prefix_token_id = None
    return Encoder(lm)
