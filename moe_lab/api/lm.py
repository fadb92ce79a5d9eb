"""A method on a model of one's own, as a language model of lm-eval; `moe-lab-eval`, lm-eval's own command with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry

from moe_lab.api.language_model import loaded_model
from moe_lab.config.arguments import checked_settings, wrong
from moe_lab.config.progress import bars_of_libraries_hidden
from moe_lab.config.schema import Config, ModelConfig
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods import config_class, get_method, methods_with
from moe_lab.methods.method import Context, Method, ModelMaker, TrainingMethod
from moe_lab.models.load import LoadedModel, load_model
from moe_lab.runs.evaluation.lms import AnsweringLM

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from moe_lab.engine.lm import EngineLM


class MethodLM(AnsweringLM):
    """Answers lm-eval's requests under a method, which is on the model while they are answered and not otherwise."""

    def __init__(self, open_lm: Callable[[], AbstractContextManager[EngineLM]], tokenizer: Any):
        super().__init__(lambda: tokenizer)
        self._open = open_lm

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template that lm-eval stores with its results."""
        hf: Any = TemplateLM  # its method reads the tokenizer alone
        return hf.chat_template(self, chat_template)

    def _answer(self, kind: str, requests: list[Instance]) -> list[Any]:
        with self._open() as lm:
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
    """A model under a method, for `lm_eval.simple_evaluate(model=moe_lab.lm(model, tokenizer, method="roe", n=8))`.

    The ensemble or policy of the method answers lm-eval's requests. `model` itself is not changed.

    Args:
        model: a causal language model of transformers, in evaluation mode, with routers of a supported family.
        method: name of a method, of a plug-in too, that needs neither training nor documents of a task.
        seed: of the method's randomness and of sampled answers.
        batch_size, max_batch_size, max_length: as the keys of the command.
        keys: the method's keys (`python -m moe_lab --help method=roe`).

    Raises ConfigError for an unknown method, key or value, and ModelError for a model that the method cannot run.
    """
    if not isinstance(method, str):
        raise wrong("method", method, "give the name of a method, e.g. roe")
    config = _config(method, keys, seed, batch_size, max_batch_size, max_length)
    loaded = loaded_model(model, tokenizer, needs_router=get_method(method).needs_router)
    return MethodLM(_opener(config, loaded), tokenizer)


class PretrainedLM(MethodLM):
    """`lm_eval --model moe_lab --model_args pretrained=<hub id or folder>,method=roe,n=8`.

    Args:
        pretrained: hub id or folder of the model; "tiny" and "tiny-noisy": the embedded ones.
        revision, tokenizer, dtype: as the command's keys.
        peft: folder or hub id of an adapter, which is merged into the weights (the command's `model.peft`).
        device: as the command's key. lm-eval's command passes "cuda:0" by default. Without a GPU it is the CPU, as for
            lm-eval's own `hf`.
        keys: as of `moe_lab.lm`.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        method: str = "base",
        *,
        revision: str | None = None,
        tokenizer: str | None = None,
        peft: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        offline: bool = False,
        seed: int = 0,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        max_length: int | None = None,
        **keys: Any,
    ):
        if pretrained is None:
            raise ConfigError("moe_lab needs a model: --model_args pretrained=<hub id or folder>,method=roe.")
        path = None if pretrained in ("tiny", "tiny-noisy") else pretrained
        source = ModelConfig(name=pretrained, path=path, revision=revision, tokenizer=tokenizer, peft=peft)
        if device == "cuda:0" and not torch.cuda.is_available():
            device = "cpu"
        loaded = load_model(source, dtype=dtype, device=device, offline=offline)
        config = _config(method, keys, seed, batch_size, max_batch_size, max_length)
        super().__init__(_opener(config, loaded), loaded.tokenizer)


if "moe_lab" not in model_registry:  # a reloaded module registers once
    model_registry.register("moe_lab", target="moe_lab.api.lm:PretrainedLM")


def _config(method: str, keys: dict[str, Any], seed: int, batch_size: Any, most: Any, longest: Any) -> Config:
    if isinstance(batch_size, str) and batch_size.isdecimal():  # lm-eval's command gives text
        batch_size = int(batch_size)
    settings = checked_settings(seed=seed, batch_size=batch_size, max_batch_size=most, max_length=longest)
    given = build(config_class(method, keys), {"name": method, **keys}, "method.", methods_with)
    return Config(method=given, **settings)


def _opener(config: Config, loaded: LoadedModel) -> Callable[[], AbstractContextManager[EngineLM]]:
    """Opens the configuration's method. Raises ConfigError where it cannot run without a task or on this model."""
    name = config.method.name
    method, elsewhere = get_method(name)(config.method), f'moe_lab.run(["method={name}", ...]) runs it.'
    if isinstance(method, TrainingMethod | ModelMaker):
        raise ConfigError(f"method={name} trains a model: {elsewhere}")
    if type(method).data_identity is not Method.data_identity:
        raise ConfigError(f"method={name} reads documents of a task: {elsewhere}")
    method.check(loaded.facts)
    return lambda: method.open(loaded, Context(config=config))


def main() -> None:
    """Run lm-eval's command line with the model `moe_lab` (`PretrainedLM`).

        moe-lab-eval --model moe_lab --model_args pretrained=my/model,method=roe,n=8 --tasks arc_easy --limit 50

    `pretrained` and `peft` are folders or hub ids. Arguments, output and exit code are those of `lm_eval`, whose own
    command imports no packages of others; a wrong method or key is one message and exit code 2.
    """
    from lm_eval.__main__ import cli_evaluate

    try:
        with bars_of_libraries_hidden():
            cli_evaluate()
    except MoeLabError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
