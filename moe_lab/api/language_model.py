"""Text, tokens and log-likelihoods of a model under a method: what `RoE` and `C3PO` have in common.

V = vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList, StopStringCriteria

from moe_lab.config.validators import did_you_mean
from moe_lab.engine.custom_generate import custom_generate, next_scores
from moe_lab.engine.forward.recurrent import RecurrentForward
from moe_lab.engine.generation.options import unsupported
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.recurrent_engine import RecurrentEngine
from moe_lab.errors import ConfigError

_NOT_TAKEN = {
    *("inputs", "custom_generate", "assistant_model", "assistant_tokenizer", "tokenizer"),
    *("negative_prompt_ids", "negative_prompt_attention_mask", "synced_gpus"),
}
_NOT_TAKEN_WHY = "this package reads the prompt, has the tokenizer and computes every token itself"

Ids: TypeAlias = Sequence[int] | Tensor
"""Token ids of one text: a list, or an int64 tensor [T]."""


class LanguageModel:
    """A model of transformers whose tokens an engine of this package computes.

    The model is not changed: `model(...)`, and `model.generate` without `custom_generate`, stay those of the untouched
    model.
    """

    def __init__(self, lm: EngineLM):
        self.model, self.tokenizer = lm.model, lm.tokenizer
        self.lm = lm
        """The same for lm-eval: `lm_eval.simple_evaluate(model=roe.lm)`."""
        self.lm.label = type(self).__name__
        self._engine = lm.engine or RecurrentEngine(RecurrentForward(lm.model, lm.ensemble))

    def generate(self, text: str | Sequence[str], **options: Any) -> str | list[str]:
        """The text that is generated after a prompt, or after each of a batch of prompts.

        Args:
            options: as `model.generate` takes them: max_new_tokens, do_sample, temperature, top_p, stop_strings,
                num_return_sequences, streamer, logits_processor, ...

        Returns a string for a string, else a list of strings; with num_return_sequences=k a list with k for each prompt
        in turn. A stop string ends the text and stays in it, as in transformers.
        """
        texts = [text] if isinstance(text, str) else list(text)
        config = self._generation_config(options)
        inputs = self._padded([self.lm.encode_prompt(each) for each in texts])
        if stop := config.stop_strings:  # transformers hands no tokenizer to custom_generate
            criteria = StopStringCriteria(self.tokenizer, stop)
            options["stopping_criteria"] = StoppingCriteriaList(
                [*(options.get("stopping_criteria") or ()), criteria]
            )
            options["stop_strings"] = None
        generate = partial(
            self,
            streamer=options.get("streamer"),
            texts=[each for each in texts for _ in range(config.num_return_sequences)],
        )
        if config.pad_token_id is None:
            options["pad_token_id"] = self.tokenizer.pad_token_id
        ids = self.model.generate(**inputs, custom_generate=generate, **options)
        new = ids[:, inputs["input_ids"].shape[1] :]
        answers = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        return answers[0] if isinstance(text, str) and len(answers) == 1 else answers

    def next_token_logprobs(self, ids: Ids | Sequence[Ids]) -> Tensor:
        """float32 [V]: log-probabilities of the token after `ids`; [texts, V] for a list of texts.

        They are -inf where a probability is below float32's range.
        """
        plain: Any = (
            ids.tolist()
            if isinstance(ids, Tensor)
            else [each.tolist() if isinstance(each, Tensor) else each for each in ids]
        )
        alone = isinstance(plain[0], int)
        prompts = [plain] if alone else plain
        with self.lm.running():
            scores = next_scores(self._engine, prompts, self.tokenizer.batch_decode(prompts))
        logprobs = scores.log_softmax(dim=-1)
        return logprobs[0] if alone else logprobs

    def loglikelihood(
        self, context: str | Sequence[str], continuation: str | Sequence[str]
    ) -> float | list[float]:
        """Log-probability of a continuation after a context, in nats, as lm-eval asks for it.

        Args:
            context: a text, or one for each continuation. "" stands for the beginning-of-text token. A context that is
                too long for the model loses its beginning.
            continuation: a text, blank in front included, or a list of them.

        Returns a number for two strings, else a list with one for each continuation.
        """
        continuations = [continuation] if isinstance(continuation, str) else list(continuation)
        contexts = [context] * len(continuations) if isinstance(context, str) else list(context)
        requests = [Request(pair) for pair in zip(contexts, continuations, strict=True)]
        found: dict[int, tuple[float, bool]] = {}
        self.lm.answer("loglikelihood", requests, found.__setitem__)
        values = [found[i][0] for i in range(len(requests))]
        return values[0] if isinstance(continuation, str) and isinstance(context, str) else values

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        texts: Sequence[str] | None = None,
        **model_kwargs: Any,
    ) -> Tensor:
        """The decoding loop of `model.generate(..., custom_generate=roe)`. `texts` are the prompts as texts, if known.

        transformers passes neither `streamer` nor `tokenizer` to such a loop. `roe.generate` takes both `streamer` and
        `stop_strings`; with `model.generate` write `custom_generate=functools.partial(roe, streamer=streamer)` and
        `stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)]`.

        Raises ValueError for what it does not support: beams, assistants, returned scores, a cache that is given.
        """
        if model is not self.model:
            raise ValueError("custom_generate is that of another model.")
        if _argument_of_generate("assistant_model") is not None:
            raise ValueError(
                "assistant_model= is not supported: the engine computes every token itself. Leave it out."
            )
        with self.lm.running():
            return custom_generate(
                *(self._engine, model, input_ids, logits_processor, stopping_criteria, generation_config),
                seed=self.lm.seed,
                texts=texts,
                tokenizer=self.tokenizer,
                streamer=streamer,
                model_kwargs=model_kwargs,
            )

    def _generation_config(self, options: dict[str, Any]) -> GenerationConfig:
        """What `options`, their `generation_config` and the model's own come to, merged as `model.generate` does it.

        Raises ConfigError for an option that is unknown, or not supported.
        """
        of_generate = set(inspect.signature(self.model.generate).parameters) - {"kwargs"}
        for name in _NOT_TAKEN & options.keys():
            if options[name] is not None:
                raise ConfigError(f"generate({name}=) is not supported: {_NOT_TAKEN_WHY}. Leave it out.")
        own = {key: value for key, value in options.items() if key not in of_generate}
        config, unknown = self.model._prepare_generation_config(options.get("generation_config"), **own)
        if problem := unsupported(config):
            raise ConfigError(problem)
        for name in unknown:
            known = [*of_generate - _NOT_TAKEN, *GenerationConfig().to_dict()]
            raise ConfigError(f"generate({name}=) is no option of model.generate.{did_you_mean(name, known)}")
        return config

    def _padded(self, prompts: list[list[int]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` of prompts, padded on the left, on the model's device."""
        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        ids = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self.model.device
        return {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": torch.tensor(mask, device=device),
        }


def _argument_of_generate(name: str) -> Any:
    """An argument of the running `model.generate`, which hands few of them to `custom_generate`."""
    frame = inspect.currentframe()
    while frame is not None and "custom_generate" not in frame.f_locals:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get(name)
