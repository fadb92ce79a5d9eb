"""The source of a model: a folder, or a repository of the hub, whose files are a folder in the cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

import moe_lab.models.designs  # noqa: F401 - registers this package's models with AutoConfig
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError, reading
from moe_lab.models.files import (
    ADAPTER,
    ADAPTER_TENSORS,
    NO_CODE,
    check_mappings,
    code_refused,
    known_weights,
    refuse_adapter,
)
from moe_lab.models.hub import Repository, explain, fetch, find, weight_files
from moe_lab.models.identity import SMALL
from moe_lab.models.transformers_internals import attention_of
from moe_lab.routing import family_of_type, supported

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def set_experts_per_token(config: Any, count: int) -> None:
    """Set the top-k in a model's configuration. Raises ConfigError for an impossible count."""
    text = config.get_text_config()
    family = family_of_type(text.model_type)
    if family is None:
        raise ConfigError(
            f"model.experts_per_token needs a model of a supported family ({', '.join(supported())})."
        )
    if family.fixed_top_k:
        raise ConfigError(f"model.experts_per_token: {family.name} models cannot have another number.")
    most = family.most_experts_per_token(text)
    if not 1 <= count <= most:
        raise ConfigError(
            f"model.experts_per_token={count}: a token of this model can have 1 to {most} experts of the "
            f"{family.num_experts(text)} in a layer."
        )
    owner, _, attribute = family.top_k.rpartition(".")
    setattr(attrgetter(owner)(text) if owner else text, attribute, count)


EMBEDDED = Path(__file__).parent
"""The folder of the embedded models, `tiny` and `tiny-noisy`."""
TINY = EMBEDDED / "tiny"


def model_source(model: ModelConfig) -> str:
    """The model's hub id or folder. Raises ModelError for a model that is yet to be trained."""
    if model.recipe is not None:
        raise ModelError(
            f"model={model.name} is trained on first use, and this has not happened. mode=run trains it; the others "
            "take model.path=<the trained model>."
        )
    if model.path:
        return str(Path(model.path).expanduser())
    own = EMBEDDED / model.name
    return str(own if (own / "config.json").is_file() else TINY)


def load_config(model: ModelConfig, *, offline: bool) -> PreTrainedConfig:
    """The model's configuration, with `experts_per_token` applied.

    Raises ModelError if there is none, or if it is not that of a causal language model.
    """
    config = read_config(model, offline=offline)
    _check_language_model(config, model_source(model))
    if model.experts_per_token is not None:
        set_experts_per_token(config, model.experts_per_token)
    return config


def read_config(model: ModelConfig, *, offline: bool) -> PreTrainedConfig:
    """A model's configuration as it is stored. Raises ModelError if there is none that runs without code of its own."""
    transformers_logging.set_verbosity_error()
    for library in ("torchao", "torch.utils._pytree"):  # of kernels that this machine does not need
        logging.getLogger(library).setLevel(logging.ERROR)
    folder, source = model_folder(model, offline=offline), model_source(model)
    check_mappings(folder, f"The model {source}")
    file = folder / "config.json"
    with reading(file, raises=ModelError, says="is not valid"), code_refused(source, file):
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True, **NO_CODE)
        except StrictDataclassError as error:  # its first line does not say the reason
            raise error.__cause__ or error from error
        text = config.get_text_config()
        positions = getattr(text, "max_position_embeddings", 1)
        quantized = getattr(config, "quantization_config", None)
        kernels = (attention_of(config), attention_of(text))
        if not isinstance(positions, int) or positions < 1:
            raise ValueError(f"max_position_embeddings is {positions}")
        if not (quantized is None or isinstance(quantized, dict) or hasattr(quantized, "to_dict")):
            raise ValueError("quantization_config is no mapping")
    if getattr(config, "transformers_weights", None) is not None:
        raise ModelError(
            f"{folder}/config.json names its weights in transformers_weights, which is not read. Name the file "
            "model.safetensors."
        )
    for kernel in kernels:
        if "/" in str(kernel):
            raise ModelError(
                f"{source} asks for the kernel {kernel} of the hub, which is code that is never "
                "fetched. Remove attn_implementation from its config.json."
            )
    return config


def _check_language_model(config: PreTrainedConfig, source: str) -> None:
    """Raise ModelError for a model that AutoModelForCausalLM does not load. Imports no modeling code."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    text = config.get_text_config()
    part = ""
    if text is not config and type(text) in MODEL_FOR_CAUSAL_LM_MAPPING:
        part = (
            f"\nIts text model alone runs, saved as a checkpoint of its own (model_type {text.model_type})."
        )
    raise ModelError(
        f"{source} has the model type {config.model_type}, which is no causal language model of transformers "
        f"(AutoModelForCausalLM does not take it).{part}\ndocs/models.md says which models run."
    )


def model_repository(model: ModelConfig, *, offline: bool) -> Repository | None:
    """The hub's repository at the commit of `model.revision`; None for a folder.

    Raises ModelError, and ConfigError for a revision of a folder.
    """
    source = model_source(model)
    if not _is_folder(source):
        with _explained(source, "model"):
            return find(source, "model", model.revision, offline=offline)
    if model.revision is not None:
        raise ConfigError(
            f"model.revision={model.revision} belongs to a repository of the hub, and the model is the folder "
            f"{source}. Leave it out."
        )
    return None


def model_commit(model: ModelConfig, *, offline: bool) -> str | None:
    """The commit of `model.revision` on the hub; None for a folder. Raises ModelError."""
    repository = model_repository(model, offline=offline)
    return None if repository is None else repository.commit


def model_folder(model: ModelConfig, *, offline: bool, weights: bool = False) -> Path:
    """The folder to load from. Missing files of a hub model are fetched, weights only with `weights`.

    Raises ModelError, with what to do, if files are not available.
    """
    source = model_source(model)
    repository = model_repository(model, offline=offline)
    if repository is None:
        if not (Path(source) / "config.json").is_file():
            raise ModelError(
                f"{source} is no model: it has no config.json. model.path takes a folder in Hugging Face format."
            )
        refuse_adapter(Path(source), source)
        if weights:
            known_weights(Path(source))
        return Path(source)
    if not repository.holds("config.json"):
        raise ModelError(f"The repository {source} is no model: it has no config.json.")
    with _explained(source, "model"):
        refuse_adapter(fetch(repository, small_files(repository)), source)
        return fetch(repository, weight_files(repository)) if weights else repository.snapshot


def tokenizer_folder(model: ModelConfig, *, offline: bool) -> Path:
    """The folder of the tokenizer's files: the model's, or that of `model.tokenizer` at its own default revision."""
    if model.tokenizer is None:
        return model_folder(model, offline=offline)
    return _small_folder(model.tokenizer, small_files, "tokenizer", offline)


def adapter_folder(model: ModelConfig, *, offline: bool) -> Path | None:
    """The folder of the adapter in `model.peft`, of the hub at its default revision; None without one."""
    if model.peft is None:
        return None
    return _small_folder(model.peft, adapter_files, "adapter", offline)


def _small_folder(source: str, choose: Callable[[Repository], list[str]], what: str, offline: bool) -> Path:
    """A local folder, or that of the chosen files of a repository at its default revision."""
    source = str(Path(source).expanduser())
    if _is_folder(source):
        return Path(source)
    with _explained(source, what):
        repository = find(source, offline=offline)
        return fetch(repository, choose(repository))


def adapter_files(repository: Repository) -> list[str]:
    """The names of an adapter's files; those that the repository lacks are left out."""
    names = (ADAPTER, ADAPTER_TENSORS)
    return [name for name in names if repository.files is None or repository.holds(name)]


def small_files(repository: Repository) -> list[str]:
    """The names of configuration and tokenizer files; empty offline."""
    if repository.files is None:
        return []
    return [
        name
        for name in repository.files
        if name.endswith(SMALL) and not name.endswith(".index.json")
        if "/" not in name or name.startswith("additional_chat_templates/")
    ]


def _is_folder(source: str) -> bool:
    """Whether a source is a local folder. Raises ModelError for a path without a folder."""
    path = Path(source)
    looks_local = path.is_absolute() or source.startswith(".") or source.count("/") > 1
    if looks_local and not path.is_dir():
        raise ModelError(f"There is no folder {source}. Give a local folder or a hub id like owner/name.")
    return path.is_dir()


@contextmanager
def _explained(source: str, what: str) -> Iterator[None]:
    """Inside the context, errors of the hub's client become a ModelError with a remedy."""
    import httpx2

    try:
        yield
    except (OSError, ValueError, httpx2.HTTPError) as error:
        raise ModelError(explain(error, source, what)) from error
