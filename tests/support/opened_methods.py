"""A method opened on a model in memory, and answers of its LM."""

from types import SimpleNamespace
from typing import Any

from moe_lab.methods.method import Context, Method
from moe_lab.models.facts import ModelFacts, routing_facts
from tests.support.ensembles import answered  # noqa: F401 - for the tests of methods


def context(seed: int = 0, **changes: Any) -> Context:
    """The context of a run with the engine's default settings."""
    options = {"batch_size": "auto", "max_batch_size": None, "max_length": None}
    config: Any = SimpleNamespace(seed=seed, model=SimpleNamespace(add_bos_token=None), **options)
    return Context(config=config, **changes)


def facts_of(model: Any) -> ModelFacts:
    nowhere = dict.fromkeys(("path", "revision", "commit"))
    return ModelFacts(name="m", dtype="float32", **nowhere, **routing_facts(model.config))


def loaded(model: Any, tokenizer: Any) -> Any:
    """What `load_model` returns, without a source."""
    return SimpleNamespace(model=model, tokenizer=tokenizer, facts=facts_of(model))


def opened(method: Method, model: Any, tokenizer: Any, seed: int = 0) -> Any:
    """The context manager of the method's LM."""
    return method.open(loaded(model, tokenizer), context(seed))
