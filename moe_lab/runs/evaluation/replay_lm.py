"""An lm-eval model that answers from the response log and asks the real one only what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM

from moe_lab.models.chat import Framing
from moe_lab.results.request_log import ResponseLog, request_key
from moe_lab.runs.evaluation.cost import Meter

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from moe_lab.engine.lm import EngineLM


class RecordedLM(Framing, LM):
    """Answers lm-eval's requests from `log`; `open_model` is called once, when the first answer is missing.

    `load_tokenizer` and `chat_template` as in `Framing`.
    """

    def __init__(
        self,
        log: ResponseLog,
        open_model: Callable[[], EngineLM],
        load_tokenizer: Callable[[], Any],
        chat_template: bool | str | None = False,
    ):
        LM.__init__(self)
        Framing.__init__(self, load_tokenizer, chat_template)
        self.log = log
        self._open_model = open_model

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self._answer("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return self._answer("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return self._answer("generate_until", requests)

    @cached_property
    def model(self) -> EngineLM:
        return self._open_model()

    def forget_model(self) -> None:
        """Let go of the model; the next question opens it again."""
        self.__dict__.pop("model", None)

    def _answer(self, kind: str, instances: list[Instance]) -> list[Any]:
        keys: list[str] = []
        missing: dict[str, tuple[tuple[Any, ...], int]] = {}
        repeats: Counter[int] = Counter()
        for instance in instances:
            # lm-eval lists one Instance `repeats` times; equal prompts of two documents are one question
            repeat = repeats[id(instance)]
            repeats[id(instance)] += 1
            key = request_key(kind, instance.args, repeat)
            keys.append(key)
            if key not in self.log:
                missing[key] = (instance.args, repeat)
        if missing:
            self._ask(kind, missing)
        return [self.log[key] for key in keys]

    def _ask(self, kind: str, missing: dict[str, tuple[tuple[Any, ...], int]]) -> None:
        from moe_lab.engine.lm import Request

        model = self.model
        keys = list(missing)
        meter = Meter(model)
        model.answer(
            kind,
            [Request(*asked) for asked in missing.values()],
            lambda index, response: self.log.answer(keys[index], response, meter.spent()),
        )
        self.log.spend(meter.spent())
