"""C3PO on a model of one's own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictStr

from moe_lab.api.language_model import LanguageModel, loaded_model
from moe_lab.config.arguments import NonEmptyText, checked, checked_settings
from moe_lab.config.paths import user_path
from moe_lab.config.schema import Config
from moe_lab.config.validators import build
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.engine import C3POLM
from moe_lab.methods.c3po.method import C3PO as C3POMethod
from moe_lab.methods.c3po.method import named_layers
from moe_lab.methods.references.reference_set import (
    ReferenceSet,
    given_references,
    stored_references,
)
from moe_lab.methods.references.store import check_own
from moe_lab.models.facts import LoadedModel
from moe_lab.models.output_flags import expected_flags
from moe_lab.routing.hook import opened

_OF_TASKS = ("reference", "reference_size", "trace")
"""Keys that name documents of tasks and files of a run."""


References = Annotated[list[tuple[StrictStr, NonEmptyText]], Field(min_length=1)]


class C3PO(LanguageModel):
    """Critical-layer, core-expert, collaborative pathway optimization (arXiv 2504.07964), as
    `method=c3po` computes it.

        c3po = C3PO(model, tokenizer, references=[("2 + 2 =", " 4"), ("3 + 1 =", " 4"), ...], k=3)
        c3po.loglikelihood("1 + 2 =", [" 3", " 4"])

    The routing weights of each prompt's last token are optimized on the references nearest to it,
    and the prompt is answered with them. The model is not changed.

    Args:
        model: a causal language model of transformers in evaluation mode, whose routers choose by
            logits.
        tokenizer: the model's tokenizer.
        references: prompts and their right answers (blank in front included), of questions that the
            model itself answers correctly; or the folder of a set that the command stored,
            `outputs/references/<name>`.
        seed: of sampled tokens.
        keys: `optimizer`, `layers`, `core_experts`, `k`, `steps`, ... (`python -m moe_lab --help
            method=c3po`).

    Raises ConfigError for an impossible key, for fewer references than k and for a stored set of
    another model, and ModelError for a model that cannot be routed otherwise.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        references: Sequence[tuple[str, str]] | str | Path,
        *,
        seed: int = 0,
        **keys: Any,
    ):
        settings: C3POConfig = build(C3POConfig, keys, "method.")
        seed = checked_settings(seed=seed)["seed"]
        _refuse_tasks(settings, keys)
        if not isinstance(references, str | Path):
            remedy = 'give pairs of prompt and answer, e.g. [("2 + 2 =", " 4")], no answer empty'
            references = checked("references", references, References, remedy)
        loaded = loaded_model(model, tokenizer)
        C3POMethod(settings).check(loaded.facts)
        _check_core_experts(keys.get("core_experts"), loaded.facts.experts)
        layers = named_layers(settings.layers, loaded.facts.moe_layers)
        reference_set = _reference_set(references, settings, loaded)
        count = len(reference_set)
        # with epsilon, a question may have fewer neighbours than k
        least = settings.k if settings.epsilon is None else 1
        if count < least:
            raise ConfigError(
                f"C3PO has {count} references, and k={settings.k} neighbours are wanted."
            )
        config = Config(method=settings, seed=seed)
        lm = C3POLM(loaded, config, settings, layers, reference_set)
        super().__init__(lm, optimizer=settings.optimizer, k=settings.k, references=count)
        self.lm.progress = False


def _check_core_experts(core_experts: Any, experts: int) -> None:
    """Raise ConfigError for a given number of core experts that is above that of the experts."""
    if core_experts is not None and core_experts > experts:
        raise ConfigError(
            f"method.core_experts={core_experts}: the model has {experts} "
            "experts per layer; give at most these, or None for all."
        )


def _refuse_tasks(settings: C3POConfig, keys: Mapping[str, Any]) -> None:
    """Raise ConfigError for keys that need the tasks of a run."""
    for key in _OF_TASKS:
        if key in keys:
            raise ConfigError(f"C3PO(..., {key}=) is a key of runs over tasks: use `references`.")
    if settings.optimizer == "oracle":
        raise ConfigError(
            "optimizer=oracle reads a task's right answers: use the command's method=c3po."
        )


def _reference_set(
    references: Sequence[tuple[str, str]] | str | Path, settings: C3POConfig, loaded: LoadedModel
) -> ReferenceSet:
    """The references of a stored folder, or given pairs of prompt and answer, which the model
    reads."""
    base_lm = EngineLM(loaded.model, loaded.tokenizer, progress=False)
    with opened(loaded.model, "C3PO", alone=True), expected_flags(loaded.model.config):
        if isinstance(references, str | Path):
            folder = user_path(references)
            check_own(folder, settings.tokens, loaded, base_lm.budget)
            return stored_references(folder, settings.embeddings, loaded)
        return given_references(references, settings, loaded, base_lm)
