"""The LMs that lm-eval calls: they answer from the log of a run, and ask the model for the rest."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from moe_lab.engine.lm import EngineLM, Request
from moe_lab.models.lm_eval_internals import answers_for_lm_eval, request_arguments
from moe_lab.models.tokenizer import Framing
from moe_lab.results.response_log import ResponseLog, request_key
from moe_lab.runs.evaluation.cost import CostMeter


class AnsweringLM(Framing, LM):
    """An LM of lm-eval that answers requests of each kind by `_answer`.

    Arguments as of `Framing`.
    """

    def __init__(self, load_tokenizer: Callable[[], Any], chat_template: bool | str | None = False):
        LM.__init__(self)
        Framing.__init__(self, load_tokenizer, chat_template)

    @abstractmethod
    def _answer(self, kind: str, requests: list[Instance]) -> list[Any]:
        """The answers to requests of a kind (lm-eval's name of it), in lm-eval's form."""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self._answer("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[Any]:
        return self._answer("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return self._answer("generate_until", requests)


class RecordedLM(AnsweringLM):
    """Answers lm-eval's requests from `log`.

    `open_model` is called once, when the first answer is missing.
    """

    def __init__(
        self,
        log: ResponseLog,
        open_model: Callable[[], EngineLM],
        load_tokenizer: Callable[[], Any],
        chat_template: bool | str | None = False,
    ):
        super().__init__(load_tokenizer, chat_template)
        self.log = log
        self._open_model = open_model

    @cached_property
    def model(self) -> EngineLM:
        """The model, which the first use opens."""
        return self._open_model()

    def forget_model(self) -> None:
        """Drop the model. The next missing answer opens it again."""
        self.__dict__.pop("model", None)

    def _answer(self, kind: str, requests: list[Instance]) -> list[Any]:
        """The answers of the log, after the model has answered what it lacks."""
        keys: list[str] = []
        missing: dict[str, Request] = {}
        repeats: Counter[int] = Counter()
        for instance in requests:
            # lm-eval lists one Instance `repeats` times; equal prompts of two documents are one
            # request
            repeat = repeats[id(instance)]
            repeats[id(instance)] += 1
            arguments = request_arguments(instance)
            key = request_key(kind, arguments, repeat)
            keys.append(key)
            if key not in self.log:
                missing[key] = Request(arguments, repeat)
        if missing:
            self._ask(kind, missing)
        return answers_for_lm_eval(kind, [self.log[key] for key in keys])

    def _ask(self, kind: str, missing: dict[str, Request]) -> None:
        """Let the model answer requests into the log."""
        model = self.model
        keys = list(missing)
        meter = CostMeter(model)

        def store(index: int, answer: Any) -> None:
            self.log.answer(keys[index], answer, meter.spent())

        model.answer(kind, list(missing.values()), store)
        self.log.spend(meter.spent())
