"""Judges of the harm of answers (a higher score means more harm): interface, registry, and
functions for lm-eval.

Adding a judge: a module with a `Judge` subclass, and a line in `JUDGES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from moe_lab.config.validators import one_of
from moe_lab.errors import ConfigError
from moe_lab.results.code import versioned

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config


Verdict = dict[str, Any]
"""{"scores": {metric: float}, ...}, or {"failed": reason} for an answer that the judge cannot
judge. Plain JSON."""


class Exchange(NamedTuple):
    """A prompt and the answer to judge."""

    prompt: str
    """The text of the data set, without chat template."""
    answer: str


class Judge(ABC):
    """A judge of a run. Only `judge` loads weights."""

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    """Names of the scores; tables show the first."""
    numerics: ClassVar[int] = 1
    """Raised whenever verdicts may change: part of the identity."""

    def __init__(self, config: Config):
        self.config = config

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that determines the verdicts, as plain values. Raises ConfigError if the model is not
        available."""
        return {"judge": self.name, "numerics": self.numerics, **self._identity()}

    @abstractmethod
    def _identity(self) -> dict[str, Any]: ...

    def check(self) -> None:
        """Raise ConfigError if the judge cannot work: a key, a package or weights are missing or
        unfit."""
        assert self.identity  # raises the errors of a model

    def folder(self) -> Path | None:
        """The folder of the judge's model, fetched if it is missing; None without a model. Raises
        ModelError."""
        return None

    @abstractmethod
    def judge(self, exchanges: Sequence[Exchange]) -> Iterator[Verdict]:
        """The verdict on each exchange, in order. Loads the judge, and removes it from memory at
        the end."""


JUDGES = {
    "toy": "moe_lab.tasks.judges.toy:ToyJudge",
    "reward": "moe_lab.tasks.judges.reward:RewardModel",
    "llama_guard": "moe_lab.tasks.judges.llama_guard:LlamaGuard",
    "openai": "moe_lab.tasks.judges.moderation:Moderation",
}


def judge_class(name: str) -> type[Judge]:
    """The class of a judge of `JUDGES`."""
    module, _, attribute = JUDGES[name].partition(":")
    return getattr(import_module(module), attribute)


def judge_names(config: Config) -> list[str]:
    """Names of the judges of a run's safety tasks, in the order of `JUDGES`: `task.judges`, else
    the default.

    Raises ConfigError for unknown names.
    """
    names = config.task.judges
    if names is None and config.model.path is None:
        return ["toy"]
    if names is None:
        return ["reward", "llama_guard"]
    for name in names:
        one_of("task.judges", name, tuple(JUDGES))
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"task.judges={names} must name judges, each once: {', '.join(JUDGES)}.")
    return [name for name in JUDGES if name in names]


def judges_of(config: Config, tasks: TaskDict) -> tuple[Judge, ...]:
    """The judges of a run's tasks; empty without a judged task, and with predict_only=true.

    Raises ConfigError for judges without such a task.
    """
    if not any(is_judged(task) for task in tasks["tasks"].values()):
        if config.task.judges is not None:
            raise ConfigError("task.judges: no task of this run is judged. Leave it out.")
        return ()
    if config.predict_only:
        return ()
    return tuple(judge_class(name)(config) for name in judge_names(config))


# lm-eval calls two functions of a judged task: the filter that judges all answers, and the metrics
# of a document. The filter turns each answer into {judge: verdict}. A failed verdict has no scores:
# lm-eval's mean, its standard error and all comparisons use only answers with a score.

Verdicts = Callable[[Sequence[Exchange]], list[dict[str, Verdict]]]
"""Returns the verdict of each judge by name, per exchange."""
_verdicts: ContextVar[Verdicts | None] = ContextVar("verdicts", default=None)


@contextmanager
def judged_by(verdicts: Verdicts) -> Iterator[None]:
    """Within this context `judge_answers` calls `verdicts`."""
    token = _verdicts.set(verdicts)
    try:
        yield
    finally:
        _verdicts.reset(token)


@versioned("judge answers", 1)
def judge_answers(
    responses: Sequence[Sequence[str]], documents: Sequence[dict[str, Any]]
) -> list[dict[str, Verdict]]:
    """lm-eval filter: the verdicts on every document's first response. Raises ConfigError outside
    of a run."""
    verdicts = _verdicts.get()
    if verdicts is None:
        raise ConfigError(
            "Answers of safety tasks are judged by runs only: they cannot be tuned on."
        )
    exchanges = []
    for document, texts in zip(documents, responses, strict=True):
        exchanges.append(Exchange(document["instruction"], texts[0]))
    return verdicts(exchanges)


@versioned("scores of judges", 1)
def score(document: dict[str, Any], results: list[dict[str, Verdict]]) -> dict[str, float]:
    """lm-eval `process_results`: the scores of all judges of the document's answer."""
    (verdicts,) = results
    scores: dict[str, float] = {}
    for verdict in verdicts.values():
        scores |= verdict.get("scores", {})
    return scores


def is_judged(task: Any) -> bool:
    """Whether an lm-eval task is scored by judges."""
    for pipeline in task.get_config("filter_list") or []:
        if any(step.get("filter_fn") is judge_answers for step in pipeline["filter"]):
            return True
    return False
