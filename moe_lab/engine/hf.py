"""lm-eval's own `hf` model for models that only it can run, in portions and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs

from moe_lab.engine.forward.layers import reads_padding

PORTION = 64
"""Requests that lm-eval's code is given at a time, so that what is answered is known before the last one is."""


class Request(NamedTuple):
    """What lm-eval asks: the arguments of one `Instance`, and which of several answers to it this is."""

    args: tuple
    repeat: int = 0


OnAnswer = Callable[[int, Any], None]
"""(index of the request, its answer)"""


class CountedHF(HFLM):
    """`hf` that counts tokens and reports answers as they come."""

    def __init__(self, **options: Any):
        self._counted = Counter(tokens_in=0, tokens_out=0)
        # Else log-probabilities have the model's dtype: in bfloat16 a step of an eighth at -20.
        super().__init__(softmax_dtype="float32", **options)

    def answer_by_hf(self, kind: str, requests: Sequence[Request], report: OnAnswer) -> None:
        """Answer all requests.

        Prompts are answered one by one where answers are sampled, or where the model might read padding: each answer
        then depends only on its prompt and on which of several answers it is.
        """
        from lm_eval.api.instance import Instance

        generates = kind == "generate_until"
        one_by_one = generates and (reads_padding(self.model) or any(map(_samples, requests)))
        size = 1 if one_by_one else PORTION
        for start in range(0, len(requests), size):
            portion = requests[start : start + size]
            instances = [
                Instance(request_type=kind, doc={}, arguments=request.args, idx=0)  # type: ignore[arg-type]
                for request in portion
            ]
            if one_by_one:
                torch.manual_seed(_seed(portion[0]))
            with torch.inference_mode():
                answers = getattr(HFLM, kind)(self, instances, disable_tqdm=True)
            for i, answer in enumerate(answers, start):
                report(i, answer)

    def _loglikelihood_tokens(self, requests: list, **kwargs: Any) -> list[tuple[float, bool]]:
        self._counted["tokens_in"] += sum(
            len(context) + len(continuation) - 1 for _, context, continuation in requests
        )
        return super()._loglikelihood_tokens(requests, **kwargs)

    def _model_generate(self, context: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        generated = super()._model_generate(context, **kwargs)
        new = generated.shape[1] - context.shape[1]
        # The last new token is not read.
        self._counted["tokens_in"] += int(kwargs["attention_mask"].sum()) + (new - 1) * len(context)
        self._counted["tokens_out"] += new * len(context)
        return generated


def _samples(request: Request) -> bool:
    return bool(normalize_gen_kwargs(request.args[1])["do_sample"])


def _seed(request: Request) -> int:
    digest = blake2b(repr((request.args[0], request.repeat)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
