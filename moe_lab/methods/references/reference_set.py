"""Reference sets: questions that the base model answers correctly, with its pathways and their
embeddings.

A set is built once per model, reference documents and prompt form, in
outputs/references/<model>-<tasks>-<id8>/. `store.py` writes its files.

R = references, W = re-routed tokens, M = MoE layers, E = experts, X = size of an embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file, save
from torch import Tensor

from moe_lab.config.schema import Config
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError, reading
from moe_lab.methods.references.documents import ReferenceDocuments, reference_documents
from moe_lab.methods.references.embeddings import (
    embed,
    embedding_identity,
    hidden_states,
    normalized,
)
from moe_lab.methods.references.store import ANSWER_TOKENS, build, pathways, read
from moe_lab.models.facts import LoadedModel, ModelFacts
from moe_lab.models.identity import model_identity
from moe_lab.models.source import model_source
from moe_lab.results.artifact import Artifact
from moe_lab.results.atomic import write_atomically
from moe_lab.results.identity import HASHED, run_id, task_settings
from moe_lab.results.names import folder_name, task_label
from moe_lab.results.versions import decisive_versions
from moe_lab.tasks.document_hashes import documents_digest
from moe_lab.tasks.workload import workload_of_tasks

NUMERICS = {"multiple_choice": 3, "generate_until": 4}
"""By the kind of the questions. Raised whenever the content of a set may change."""


@dataclass(frozen=True)
class ReferenceSet:
    """Questions that the model answered correctly, in the order of their documents."""

    folder: Path | None
    """None: in memory."""
    texts: list[str]
    """Prompts."""
    answers: list[str]
    """The model's answers."""
    prompts: list[list[int]]
    """Token ids of each prompt."""
    golds: list[list[int]]
    """Token ids of each answer, 32 at most."""
    pathway_RWME: Tensor
    """float32: routing probabilities of the prompt's re-routed tokens at every MoE layer."""
    embedding_RX: Tensor
    """float32, rows of unit length."""
    counts: dict[str, Any]
    """label, asked, correct, dropped (test documents), and the sources
    (`ReferenceDocuments.sources`); empty for a set in memory."""
    how: str | None = None
    """The value of `method.embeddings` by which `embedding_RX` was computed."""
    mean_X: Tensor | None = None
    """The references' mean, which is subtracted from hidden states."""

    def __len__(self) -> int:
        return len(self.texts)

    def embed(self, texts: list[str], model: LoadedModel) -> Tensor:
        """float32 [Q, X]: embeddings of other texts, to compare with `embedding_RX`."""
        return embed(texts, self.how, model, self.mean_X)


def load_or_build(config: Config, settings: Any, model: LoadedModel, lm: EngineLM) -> ReferenceSet:
    """The run's reference set, which is built or continued if it is incomplete.

    Args:
        settings: `tokens`, `reference`, `reference_size`, `embeddings`, `k` and `epsilon` of the
            method.
        lm: the base model.

    Raises ConfigError for missing references and for fewer than k, RunHeldError if another process
    builds it.
    """
    documents = reference_documents(config, settings)
    references = references_of(config, settings, documents, model.facts)
    folder = references.folder
    record = references.load_or_make(
        lambda: build(folder, config, settings.tokens, documents, model, lm)
    )
    least = settings.k if settings.epsilon is None else 1
    if record["correct"] < least:
        names: list[str] = []
        for source in record["sources"]:
            names += source["tasks"]
        tasks = ", ".join(names)
        enough = "" if least == 1 else f", and method.k={settings.k} neighbours are needed"
        raise ConfigError(
            f"{config.model.name} answered {record['correct']} of {record['asked']} reference "
            f"questions of {tasks} correctly{enough}.\nUse others with method.reference=<lm-eval "
            "task>, or more with method.reference_size=<n>."
        )
    return stored_references(folder, settings.embeddings, model)


def stored_references(folder: Path, how: str | None, model: LoadedModel) -> ReferenceSet:
    """The complete set of a folder, with embeddings. They are stored with the set.

    Args:
        how: `method.embeddings`.

    Raises ConfigError if a file is missing or damaged.
    """
    stored = read(folder)
    file = folder / f"embeddings-{run_id(embedding_identity(how))[:8]}.safetensors"
    if not file.exists():
        embeddings = _embedded(how, stored["texts"], model)
        tensors = {"embedding": embeddings.embedding_RX}
        if embeddings.mean_X is not None:
            tensors["mean"] = embeddings.mean_X
        write_atomically(file, save(tensors))
    with reading(file, "Remove it: it is computed again."):
        tensors = load_file(file)
    return ReferenceSet(
        folder=folder,
        **stored,
        embedding_RX=tensors["embedding"],
        how=how,
        mean_X=tensors.get("mean"),
    )


def given_references(
    pairs: Sequence[tuple[str, str]], settings: Any, model: LoadedModel, lm: EngineLM
) -> ReferenceSet:
    """A set in memory, from pairs of a prompt and the model's answer, which is right.

    Args:
        settings: `tokens` and `embeddings` of the method.
        lm: the base model.
    """
    texts = [prompt for prompt, _ in pairs]
    answers = [answer for _, answer in pairs]
    prompts = []
    golds = []
    for prompt, answer in pairs:
        prompt_ids, answer_ids = lm.encode_pair(prompt, answer)
        prompts.append(list(prompt_ids))
        golds.append(list(answer_ids[:ANSWER_TOKENS]))
    embeddings = _embedded(settings.embeddings, texts, model)
    return ReferenceSet(
        folder=None,
        texts=texts,
        answers=answers,
        prompts=prompts,
        golds=golds,
        pathway_RWME=pathways(texts, prompts, settings.tokens, model, lm.budget),
        embedding_RX=embeddings.embedding_RX,
        counts={},
        how=settings.embeddings,
        mean_X=embeddings.mean_X,
    )


def references_of(
    config: Config, settings: Any, documents: ReferenceDocuments, facts: ModelFacts
) -> Artifact:
    """The set of a run on disk; it need not exist yet."""
    content = questions_content(config, documents, facts)
    content["numerics"] = _numerics(documents)
    content["tokens"] = settings.tokens
    content["commit"] = facts.commit
    content["versions"] = decisive_versions()
    digest = run_id(content)
    name = folder_name(config.model.name, task_label(documents.tasks), digest=digest)
    folder = Path(config.output_dir) / "references" / name
    return Artifact(folder=folder, id=digest, record="references.json")


def references_left(config: Config, settings: Any, facts: ModelFacts) -> dict[str, float]:
    """The tokens to read for a run's set, by its folder's name; empty if the set is stored."""
    documents = reference_documents(config, settings)
    references = references_of(config, settings, documents, facts)
    if references.stored() is not None:
        return {}
    workload = workload_of_tasks(documents.tasks, documents.samples, config)
    return {references.folder.name: workload.prompts + workload.answers}


def references_identity(config: Config, settings: Any, facts: ModelFacts) -> dict[str, Any]:
    """A run's references and their embeddings, as plain values.

    Needs no weights. Raises ConfigError or TaskError if documents are missing, or if there are
    fewer than k.
    """
    documents = reference_documents(config, settings)
    count = sum(len(numbers) for numbers in documents.samples.values())
    if settings.epsilon is None and count < settings.k:
        raise ConfigError(
            f"method.k={settings.k} neighbours are needed, and {', '.join(documents.tasks)} have "
            f"{count} reference questions.\n"
            "Use others with method.reference=<lm-eval task>, or more with "
            "method.reference_size=<n>."
        )
    content = questions_content(config, documents, facts)
    content["numerics"] = _numerics(documents)
    content["tokens"] = settings.tokens
    return content | embedding_identity(settings.embeddings)


def questions_content(
    config: Config, documents: ReferenceDocuments, facts: ModelFacts
) -> dict[str, Any]:
    """The model, the documents and the form of their questions, as plain values.

    Needs no weights.
    """
    tasks: Any = {"tasks": documents.tasks}
    setting_names = sorted(HASHED - {"predict_only", "fewshot_seed"})
    return {
        "model": model_identity(model_source(config.model), config.model),
        "dtype": facts.dtype,
        "tasks": {name: task_settings(task) for name, task in documents.tasks.items()},
        "settings": {name: getattr(config, name) for name in setting_names},
        "samples": documents.samples,
        "metrics": documents.metrics,
        "documents": documents_digest(tasks, documents.samples),
    }


def _numerics(documents: ReferenceDocuments) -> int:
    """The largest of `NUMERICS` that counts for these documents."""
    return max(NUMERICS[task.get_config("output_type")] for task in documents.tasks.values())


class _Embeddings(NamedTuple):
    """Embeddings of references."""

    embedding_RX: Tensor
    """float32, rows of unit length."""
    mean_X: Tensor | None
    """What was subtracted from hidden states, their mean; None: nothing."""


def _embedded(how: str | None, texts: list[str], model: LoadedModel) -> _Embeddings:
    """The embeddings of references; `how` is `method.embeddings`."""
    if how is not None:
        return _Embeddings(embed(texts, how, model), None)
    states_RX = hidden_states(texts, model)
    mean_X = states_RX.mean(dim=0)
    return _Embeddings(normalized(states_RX, mean_X), mean_X)
