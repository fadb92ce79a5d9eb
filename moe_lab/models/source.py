"""The source of a model: a folder, or a repository of the hub, whose files are a folder in the
cache."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import logging as transformers_logging

import moe_lab.models.designs  # noqa: F401 - registers this package's models with AutoConfig
from moe_lab.config.library_logs import hide_kernel_messages
from moe_lab.config.paths import user_path
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError, reading
from moe_lab.models.auto_class import check_class
from moe_lab.models.hub import ADAPTER, commit_of, explain, fetch, files_of, is_offline
from moe_lab.models.identity import SMALL, is_index, known_weights, weight_files
from moe_lab.models.output_flags import reset_flags
from moe_lab.models.transformers_internals import attention_of
from moe_lab.routing import family_of_type


def set_experts_per_token(config: Any, count: int) -> None:
    """Set the top-k in a model's configuration. Raises ConfigError for an impossible count."""
    text = config.get_text_config()
    family = family_of_type(text.model_type)
    if family is None or family.fixed_top_k:
        raise ConfigError(
            f"model.experts_per_token: {text.model_type} models cannot have another number."
        )
    most = family.most_experts_per_token(text)
    if not 1 <= count <= most:
        raise ConfigError(
            f"model.experts_per_token={count}: a token of this model can have 1 to {most} experts "
            f"of the {family.num_experts(text)} in a layer."
        )
    owner_path, _, attribute = family.top_k.rpartition(".")
    owner = attrgetter(owner_path)(text) if owner_path else text
    setattr(owner, attribute, count)


EMBEDDED = Path(__file__).parent
"""The folder of the embedded models, `tiny` and `tiny-noisy`."""
TINY = EMBEDDED / "tiny"
SMALL_FILES = tuple(f"*{suffix}" for suffix in SMALL)
"""Patterns of configuration and tokenizer files."""


def model_source(model: ModelConfig) -> str:
    """The model's hub id or folder. Raises ModelError for a model that is yet to be trained."""
    if model.recipe is not None:
        raise ModelError(f"model={model.name} is trained on first use. Train it with mode=run.")
    if model.path:
        return str(user_path(model.path))
    embedded = EMBEDDED / model.name
    if not (embedded / "config.json").is_file():
        embedded = TINY
    return str(embedded)


NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""An option of every `from_pretrained`. Without it transformers asks on the terminal, and runs the
code on a `y`."""


@contextmanager
def reading_files(source: str) -> Iterator[None]:
    """Inside the context, errors of transformers about the files of a model are one ModelError
    without its code."""
    with reading(source, raises=ModelError):
        try:
            yield
        except StrictDataclassError as error:  # its first line does not say the reason
            raise error.__cause__ or error from error
        except ValueError as error:
            if "custom code" not in str(error):
                raise
            raise ModelError(
                f"{source} needs code of its own, which is never run (docs/models.md)."
            ) from error


def check_has_weights(model: ModelConfig, *, offline: bool) -> None:
    """Raise ModelError for a model without weights that can be read. Fetches small files only."""
    first_weights(model, model_folder(model, offline=offline), offline=offline)


def load_config(model: ModelConfig, *, offline: bool) -> PreTrainedConfig:
    """The model's configuration, with `experts_per_token` applied.

    Raises ModelError if there is none, or if it is that of a model that does not run.
    """
    config = read_config(model, offline=offline)
    check_class(config, model_source(model))
    if model.experts_per_token is not None:
        set_experts_per_token(config, model.experts_per_token)
    return config


def read_config(model: ModelConfig, *, offline: bool) -> PreTrainedConfig:
    """A model's configuration as it is stored, but for the flags of its outputs.

    Raises ModelError if there is none that runs without code of its own.
    """
    transformers_logging.set_verbosity_error()
    hide_kernel_messages()
    file = model_folder(model, offline=offline) / "config.json"
    with reading_files(str(file)):
        config = AutoConfig.from_pretrained(file.parent, local_files_only=True, **NO_CODE)
        for part in (config, config.get_text_config()):
            kernel = str(attention_of(part))
            if "/" in kernel:
                raise ValueError(
                    f"attn_implementation={kernel} is code of the hub, which is never run"
                )
    reset_flags(config)
    return config


def model_commit(model: ModelConfig, *, offline: bool) -> str | None:
    """The commit of `model.revision` on the hub; None for a folder.

    Raises ModelError, and ConfigError for a revision of a folder.
    """
    source = model_source(model)
    if not _is_folder(source):
        with _explained(source, "model"):
            return commit_of(source, revision=model.revision, offline=offline)
    if model.revision is not None:
        raise ConfigError(
            f"model.revision={model.revision} has no effect on the folder {source}. Leave it out."
        )
    return None


def model_folder(model: ModelConfig, *, offline: bool, weights: bool = False) -> Path:
    """The folder to load from. Missing files of a hub model are fetched, weights only with
    `weights`.

    Raises ModelError, with what to do, if files are not available.
    """
    source = model_source(model)
    commit = model_commit(model, offline=offline)
    if commit is None:
        folder = Path(source)
    else:
        folder = _fetched_folder(model, SMALL_FILES, commit, offline=offline)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{source} is no model: it has no config.json. model.path takes a folder in Hugging "
            "Face format."
        )
    if (folder / ADAPTER).exists():  # peft imports modules that an adapter's configuration names
        raise ModelError(
            f"{source} has an adapter next to its weights ({ADAPTER}), which is not loaded: it may "
            "name code to run. Move it to a folder of its own and give model.peft=<folder>, or "
            "remove it."
        )
    if not weights:
        return folder
    first = first_weights(model, folder, offline=offline)
    names = known_weights(folder, model.load.get("variant")) if is_index(first) else [first]
    if commit is not None:
        _fetched_folder(model, tuple(names), commit, offline=offline)
    for name in names:
        if not (folder / name).exists():
            raise ModelError(f"{source} has no file {name}. Fetch or copy its weights again.")
    return folder


def _fetched_folder(
    model: ModelConfig, patterns: tuple[str, ...], commit: str, *, offline: bool
) -> Path:
    """The folder of a hub model's files, which is `model.load.subfolder` of the repository."""
    source = model_source(model)
    subfolder = model.load.get("subfolder", "")
    paths = tuple(str(PurePosixPath(subfolder, pattern)) for pattern in patterns)
    return _fetched(source, paths, "model", offline, commit) / subfolder


def first_weights(model: ModelConfig, folder: Path, *, offline: bool) -> str:
    """The file that transformers reads first of a model, whose other files are in `folder`.

    Fetches nothing. Offline, the weights of a hub model may not be in the cache; they are then
    taken for safetensors. Raises ModelError for a model without weights in safetensors or .bin.
    """
    source = model_source(model)
    is_local = _is_folder(source)
    listed = None
    if not is_local:
        listed = repository_files(source, "model", model.revision, offline=offline)
    if listed is None:
        listed = frozenset(file.name for file in folder.iterdir())
    elif "subfolder" in model.load:
        listed = frozenset(_below(model.load["subfolder"], listed))
    names = weight_files(model.load.get("variant"))
    for name in names:
        if name in listed:
            return name
    if not is_local and (offline or is_offline()):
        return names[0]
    raise ModelError(
        f"{source} has no weights that can be read, neither {names[0]} nor {names[2]} nor parts "
        "of one.\n"
        "Copy them into it, or take a model that has them."
    )


def _below(folder: str, paths: Iterable[str]) -> list[str]:
    """The paths in a folder of a repository, from there."""
    beginning = f"{PurePosixPath(folder)}/"
    below = []
    for path in paths:
        if path.startswith(beginning):
            below.append(path.removeprefix(beginning))
    return below


def repository_files(
    source: str, what: str, revision: str | None = None, *, offline: bool
) -> frozenset[str] | None:
    """The paths of the files of a repository of models; None offline. Raises ModelError with a
    remedy."""
    if offline or is_offline():
        return None
    with _explained(source, what):
        return files_of(source, revision=revision)


def adapter_folder(model: ModelConfig, *, offline: bool) -> Path | None:
    """The folder of the adapter in `model.peft`, of the hub at its default revision; None without
    one."""
    if model.peft is None:
        return None
    return small_folder(model.peft, (ADAPTER, "adapter_model.safetensors"), "adapter", offline)


def small_folder(source: str, patterns: tuple[str, ...], what: str, offline: bool) -> Path:
    """A local folder, or that of a repository's files at its default revision.

    Raises ModelError, which names `what`, if files are not available.
    """
    source = str(user_path(source))
    if _is_folder(source):
        return Path(source)
    return _fetched(source, patterns, what, offline)


def _fetched(
    source: str, patterns: tuple[str, ...], what: str, offline: bool, commit: str | None = None
) -> Path:
    """The folder of a repository's files at a commit, by default that of its default revision."""
    with _explained(source, what):
        commit = commit or commit_of(source, offline=offline)
        return fetch(source, "model", commit, patterns, offline or is_offline())


def _is_folder(source: str) -> bool:
    """Whether a source is a local folder. Raises ModelError for a path without a folder."""
    path = Path(source)
    looks_local = path.is_absolute() or source.startswith(".") or source.count("/") > 1
    if looks_local and not path.is_dir():
        raise ModelError(
            f"There is no folder {source}. Give a local folder or a hub id like owner/name."
        )
    return path.is_dir()


@contextmanager
def _explained(source: str, what: str) -> Iterator[None]:
    """Inside the context, errors of the hub's client become a ModelError with a remedy."""
    import httpx2

    try:
        yield
    except (OSError, ValueError, httpx2.HTTPError) as error:
        raise ModelError(explain(error, source, what)) from error
