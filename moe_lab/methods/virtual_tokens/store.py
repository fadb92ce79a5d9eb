"""The adapter of a run: trained once per model, questions and recipe, whatever task is evaluated with it.

outputs/models/<model>-<method>-<id8>/
  adapter/         peft's own format
  checkpoints/     checkpoints of an unfinished training
  log.jsonl        loss and learning rate of every step
  training.json    all that determines the adapter, and the course of its training; written last
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.methods.trained import Trained, check_trained
from moe_lab.methods.virtual_tokens.adapters import with_adapter
from moe_lab.methods.virtual_tokens.training import Example, Recipe, train
from moe_lab.results.atomic import obey_umask, writing
from moe_lab.results.versions import decisive_versions, versions

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.methods.references.documents import ReferenceDocuments
    from moe_lab.models.load import LoadedModel


def load_or_train(
    config: Config, settings: Any, content: dict[str, Any], model: LoadedModel
) -> dict[str, Any]:
    """The content of training.json and the `folder` of the run's adapter, which is trained as far as it is missing.

    Args:
        settings: `name`, `virtual_tokens`, `learning_rate`, `epochs`, `batch_size`, and what chooses the questions.
        content: all that determines the adapter but the hub commit of the model and the libraries' versions.

    Another process that trains it is waited for.
    """
    content = content | {"commit": model.facts.commit, "versions": decisive_versions()}
    trained = Trained.of(config, content, "adapter")
    return trained.load_or_train(content, lambda folder: _train(folder, config, settings, model))


def _train(folder: Path, config: Config, settings: Any, model: LoadedModel) -> dict[str, Any]:
    """Train, or continue, and write the adapter."""
    from moe_lab.methods.references.documents import reference_documents

    documents = reference_documents(config, settings)
    examples = _examples(config, settings, documents, model)
    recipe = Recipe(settings.learning_rate, settings.epochs, settings.batch_size, config.seed)
    start = time.perf_counter()
    with with_adapter(model.model, settings.name, settings.virtual_tokens, config.seed) as wrapped:
        losses = train(wrapped, examples, recipe, folder)
        check_trained(wrapped.prompt_encoder)
        with writing(folder / "adapter"):
            wrapped.save_pretrained(str(folder / "adapter"))
            obey_umask(folder / "adapter")
        trained = sum(parameter.numel() for parameter in wrapped.prompt_encoder.parameters())
    epoch = losses[-recipe.steps(len(examples)) // recipe.epochs :]
    return {
        "recipe": asdict(recipe),
        "questions": len(examples),
        "steps": len(losses),
        "parameters": trained,
        "loss_of_last_epoch": sum(epoch) / len(epoch),
        "last_session_seconds": time.perf_counter() - start,
        "reference": {"label": documents.label, "dropped": documents.dropped, "sources": documents.sources},
        "all_versions": versions(),
    }


def _examples(
    config: Config, settings: Any, documents: ReferenceDocuments, model: LoadedModel
) -> list[Example]:
    """All training questions, each with its right answer."""
    from moe_lab.methods.references.questions import reference_questions
    from moe_lab.methods.virtual_tokens.lm import short_lm

    lm = short_lm(model, config, settings.virtual_tokens)
    asked = reference_questions(config, documents)
    return [Example(*lm.encode_pair(question.prompt, question.right_answer)) for question in asked]
