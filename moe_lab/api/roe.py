"""RoE on a model of one's own: text, tokens and log-likelihoods of an ensemble over n routings of every token.

V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import StoppingCriteriaList, StopStringCriteria

from moe_lab.api.loaded import loaded_model
from moe_lab.engine.custom_generate import custom_generate, next_scores
from moe_lab.engine.forward.recurrent import RecurrentForward
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.recurrent_engine import RecurrentEngine
from moe_lab.methods.roe.method import RoE as Method

Ids: TypeAlias = Sequence[int] | Tensor
"""Token ids of one text: a list, or an int64 tensor [T]."""


class RoE:
    """Roster of Experts (arXiv 2509.17238): every token is the average of n routings, as `method=roe` computes it.

        roe = RoE(model, tokenizer, n=8, temperature=0.1)
        roe.generate("2 + 2 =", max_new_tokens=8)
        model.generate(**inputs, custom_generate=roe)

    The model is not changed: `model(...)`, and `model.generate` without `custom_generate`, stay those of the untouched
    model.

    Args:
        model: a causal language model of transformers with routers of a supported family, in evaluation mode.
        tokenizer: the model's tokenizer.
        n: routing samples of each token; sample 0 has no noise.
        temperature: of the noise (equation 1): a number for all MoE layers not skipped, a list with one per MoE layer,
            or the path of a profile that `tuning=` wrote. The first layer with noise follows from it.
        skip_layers: MoE layers without noise at either end; None: 1 for a number, 0 for a list or profile.
        cache: history that samples attend to: "clean", one without noise for all; "standard", each its own; "none",
            each its own, computed anew for every token.
        prefill: with histories of their own, whether samples read the prompt with noise: "noisy" or "clean".
        weights: whether combine weights come from "clean" or "perturbed" router logits.
        aggregate: what is averaged: "probabilities" or "logits".
        include_clean: whether sample 0 is part of the average.
        seed: key of the routing noise and of sampled tokens. Equal calls give equal results.

    Raises ConfigError for an impossible value, and ModelError for a model that cannot be routed otherwise.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        n: int = 32,
        temperature: float | list[float] | str = 0.1,
        skip_layers: int | None = None,
        cache: str = "clean",
        prefill: str = "noisy",
        weights: str = "clean",
        aggregate: str = "probabilities",
        include_clean: bool = True,
        seed: int = 0,
    ):
        config = Method.Config(
            n=n,
            temperature=temperature,
            skip_layers=skip_layers,
            cache=cache,
            prefill=prefill,
            weights=weights,
            aggregate=aggregate,
            include_clean=include_clean,
        )
        method, facts = Method(config), loaded_model(model, tokenizer).facts
        method.check(facts)
        self.model, self.tokenizer = model, tokenizer
        self.temperatures = method.temperatures(facts.moe_layers)
        """One per MoE layer."""
        ensemble = method.ensemble(self.temperatures, method.first_noisy(facts.moe_layers), seed)
        self.lm = EngineLM(model, tokenizer, ensemble=ensemble, seed=seed, progress=False)
        """The same ensemble for lm-eval: `lm_eval.simple_evaluate(model=roe.lm)`."""
        self._engine = self.lm.engine or RecurrentEngine(RecurrentForward(model, ensemble))

    def generate(self, text: str | Sequence[str], **options: Any) -> str | list[str]:
        """The text that the ensemble generates after a prompt, or after each of a batch of prompts.

        Args:
            options: as `model.generate` takes them: max_new_tokens, do_sample, temperature, top_p, stop_strings,
                num_return_sequences, streamer, logits_processor, ...

        Returns a string for a string, else a list of strings; with num_return_sequences=k a list with k for each prompt
        in turn. A stop string ends the text and stays in it, as in transformers.
        """
        texts = [text] if isinstance(text, str) else list(text)
        inputs = self._padded([self.lm.encode_prompt(each) for each in texts])
        if stop := options.pop("stop_strings", None):  # transformers hands no tokenizer to custom_generate
            criteria = StopStringCriteria(self.tokenizer, stop)
            options["stopping_criteria"] = StoppingCriteriaList(
                [*(options.get("stopping_criteria") or ()), criteria]
            )
        generate = partial(self, streamer=options.get("streamer"))
        options = {"pad_token_id": self.tokenizer.pad_token_id} | options
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
        scores = next_scores(self._engine, [plain] if alone else plain)
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
        **model_kwargs: Any,
    ) -> Tensor:
        """The decoding loop of `model.generate(..., custom_generate=roe)`.

        transformers passes neither `streamer` nor `tokenizer` to such a loop. `roe.generate` takes both `streamer` and
        `stop_strings`; with `model.generate` write `custom_generate=functools.partial(roe, streamer=streamer)` and
        `stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)]`.

        Raises ValueError for what it does not support: beams, assistants, returned scores, a cache that is given.
        """
        if model is not self.model:
            raise ValueError("custom_generate is the RoE of another model.")
        return custom_generate(
            *(self._engine, model, input_ids, logits_processor, stopping_criteria, generation_config),
            self.lm.seed,
            streamer,
            model_kwargs,
        )

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
