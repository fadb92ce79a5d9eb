"""A method on a model of one's own, as a language model of lm-eval."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM

from moe_lab.api.language_model import loaded_model
from moe_lab.config.arguments import checked_settings, wrong
from moe_lab.config.schema import Config
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError
from moe_lab.methods import config_class, get_method, methods_with
from moe_lab.methods.method import Context, Method, ModelMaker, TrainingMethod
from moe_lab.models.state import check_evaluation_mode
from moe_lab.runs.evaluation.lms import AnsweringLM

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from moe_lab.engine.lm import EngineLM


class MethodLM(AnsweringLM):
    """Answers lm-eval's requests under a method, which is on the model while they are answered and
    not otherwise."""

    def __init__(self, open_lm: Callable[[], AbstractContextManager[EngineLM]], tokenizer: Any):
        super().__init__(lambda: tokenizer)
        self.open = open_lm
        """Opens the method on the model."""

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template that lm-eval stores with its results."""
        hf: Any = TemplateLM  # its method reads the tokenizer alone
        return hf.chat_template(self, chat_template)

    def _answer(self, kind: str, requests: list[Instance]) -> list[Any]:
        """The answers of the method, which is opened for these requests alone."""
        with self.open() as lm:
            answers: list[Any] = getattr(lm, kind)(requests)
        return answers


def lm(
    model: Any,
    tokenizer: Any,
    method: str = "base",
    *,
    seed: int = 0,
    batch_size: int | str = "auto",
    max_batch_size: int | None = None,
    max_length: int | None = None,
    **keys: Any,
) -> MethodLM:
    """A model under a method, for `lm_eval.simple_evaluate(model=moe_lab.lm(model, tokenizer,
    method="roe", n=8))`.

    The ensemble or policy of the method answers lm-eval's requests. `model` itself is not changed.

    Args:
        model: a causal language model of transformers, in evaluation mode, with routers of a
            supported family.
        method: name of a method, of a plug-in too, that needs neither training nor documents of a
            task.
        seed: of the method's randomness and of sampled answers.
        batch_size, max_batch_size, max_length: as the keys of the command.
        keys: the method's keys (`python -m moe_lab --help method=roe`).

    Raises ConfigError for an unknown method, key or value, and ModelError for a model that the
    method cannot run.
    """
    if not isinstance(method, str):
        raise wrong("method", method, "give the name of a method, e.g. roe")
    settings = checked_settings(
        seed=seed, batch_size=batch_size, max_batch_size=max_batch_size, max_length=max_length
    )
    method_config = build(
        config_class(method, keys), {"name": method, **keys}, "method.", methods_with
    )
    config = Config(method=method_config, **settings)
    opened_method = get_method(method)(method_config)
    needs_router = opened_method.required_routing != "none"
    loaded = loaded_model(model, tokenizer, needs_router=needs_router)
    _check_runs_here(opened_method, method)
    opened_method.check(loaded.facts)

    def open_lm() -> AbstractContextManager[EngineLM]:
        # lm-eval's `hf` would leave the model in evaluation mode
        check_evaluation_mode(loaded.model)
        return opened_method.open(loaded, Context(config=config))

    return MethodLM(open_lm, tokenizer)


def _check_runs_here(method: Method, name: str) -> None:
    """Raise ConfigError for a method that trains, or that reads documents of a task."""
    elsewhere = f'moe_lab.run(["method={name}", ...]) runs it.'
    if isinstance(method, TrainingMethod | ModelMaker):
        raise ConfigError(f"method={name} trains a model: {elsewhere}")
    if type(method).data_identity is not Method.data_identity:
        raise ConfigError(f"method={name} reads documents of a task: {elsewhere}")
