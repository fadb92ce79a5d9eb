"""Embeddings of questions (C3PO, section 3.4).

R = texts, X = size of an embedding, B = texts of a pass, S = tokens of the longest, D = hidden
size.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moe_lab.config.paths import user_path
from moe_lab.config.progress import Progress
from moe_lab.engine.forward.layers import output_head
from moe_lab.engine.forward.rotary import with_own_lengths
from moe_lab.engine.pass_size import pass_budget
from moe_lab.errors import ConfigError, need_package, reading
from moe_lab.metrics.teacher_forcing import padded
from moe_lab.models.facts import LoadedModel
from moe_lab.models.file_digests import digest_of
from moe_lab.models.hub import cached_commit
from moe_lab.models.identity import LOADED, folder_content
from moe_lab.models.source import SMALL_FILES, repository_files, small_folder

SHOWN = 256
"""The number of texts from which on a progress bar is shown."""
DEFAULT = (
    "Leave method.embeddings out: the hidden states of the evaluated model are always available."
)


def embed(
    texts: Sequence[str],
    how: str | Path | None,
    model: LoadedModel | None,
    mean_X: Tensor | None = None,
) -> Tensor:
    """float32 [R, X] on the CPU, rows of unit length.

    Args:
        how: None: mean over the tokens of `model`'s last hidden states (a forward pass over each
            text); a `.safetensors` file of vectors (`read_vectors`); else a sentence-transformers
            model, by name or folder.
        mean_X: subtracted from each vector first. Hidden states share a large common part, which
            hides differences.

    Raises ConfigError if there are no vectors.
    """
    if not texts:
        return torch.zeros(0, 0)
    if how is None:
        assert model is not None, "hidden states need the model"
        vectors_RX = hidden_states(texts, model)
    elif Path(how).suffix == ".safetensors":
        vectors_RX = read_vectors(texts, user_path(how))
    else:
        device = None if model is None else str(model.device)
        encoder = _encoder(str(how), device)
        shown = len(texts) >= SHOWN
        vectors_RX = encoder.encode(list(texts), convert_to_tensor=True, show_progress_bar=shown)
    return normalized(vectors_RX.float().cpu(), mean_X)


def normalized(vectors_RX: Tensor, mean_X: Tensor | None) -> Tensor:
    """The vectors minus the mean, if there is one, scaled to unit length."""
    if mean_X is not None:
        vectors_RX = vectors_RX - mean_X
    return torch.nn.functional.normalize(vectors_RX, dim=1)


def embedding_identity(how: str | Path | None) -> dict[str, Any]:
    """All that determines embeddings except the evaluated model: {"embeddings"}, for a model of the
    hub also {"commit"}. Files and folders count by their content.

    Raises ConfigError for a missing file or package.
    """
    if how is None:
        return {"embeddings": "hidden states"}
    path = user_path(how)
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise ConfigError(f"method.embeddings={how}: there is no such file. {DEFAULT}")
        return {"embeddings": digest_of(path)}
    need_package("sentence_transformers", "embeddings", f"method.embeddings={how}")
    if not path.is_dir():
        commit = _commit(str(how))
        if commit is None:
            return {"embeddings": str(how)}
        return {"embeddings": str(how), "commit": commit}
    return {"embeddings": _content_of_encoder(path)}


def _content_of_encoder(path: Path) -> dict[str, Any]:
    """The content of a sentence-transformers model, by folder.

    Raises ConfigError for one with code.
    """
    code = next(path.rglob("*.py"), None)
    if code is not None:  # sentence-transformers would run it
        raise ConfigError(
            f"method.embeddings={path} has code ({code.name}), which is never run. {DEFAULT}"
        )
    folders = [path, *sorted(folder for folder in path.rglob("*") if folder.is_dir())]
    return {str(folder.relative_to(path)): folder_content(folder) for folder in folders}


WHAT = "sentence-transformers model"


def repository_of(name: str) -> str:
    """The repository of the hub that sentence-transformers means by a name."""
    return name if "/" in name else f"sentence-transformers/{name}"


def _commit(name: str) -> str | None:
    """The commit of a model of the hub, which a process finds once; None offline if the cache lacks
    the model.

    Raises ConfigError for a repository without weights that can be read, and ModelError for one
    that is not available.
    """
    source = repository_of(name)
    files = repository_files(source, WHAT, offline=False)
    if files is not None:
        has_weights = any(Path(file).name in LOADED for file in files)
        if not has_weights:
            raise ConfigError(
                f"method.embeddings={name} has no weights in safetensors or .bin. {DEFAULT}"
            )
    return cached_commit(source)


def encoder_folder(name: str) -> Path:
    """The folder of a sentence-transformers model: a local one, or that of the commit which is part
    of the identity.

    Missing files of the hub are fetched, without code. Raises ModelError for a repository that is
    not available.
    """
    path = user_path(name)
    if path.is_dir():
        return path
    source = repository_of(name)
    files = repository_files(source, WHAT, offline=False) or ()
    in_safetensors = any(file.endswith(".safetensors") for file in files)
    weights = "*.safetensors" if in_safetensors else "pytorch_model*.bin"
    return small_folder(source, (*SMALL_FILES, weights, f"*/{weights}"), WHAT, offline=False)


@torch.inference_mode()
def hidden_states(texts: Sequence[str], model: LoadedModel) -> Tensor:
    """float32 [R, D]: the mean of the last hidden states over each text's tokens. Long texts lose
    their beginning.

    Texts of similar length share a pass. They are padded on the right, which a causal model never
    attends to.
    """
    ids = text_ids(texts, model)
    if not ids:
        return torch.zeros(0, 0)
    longest_first = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    tokens = pass_budget(model.model).tokens
    means: dict[int, Tensor] = {}
    with Progress(len(ids), "embeddings", "text", shown=len(ids) >= SHOWN) as progress:
        while len(means) < len(ids):
            start = len(means)
            width = len(ids[longest_first[start]])
            batch = longest_first[start : start + max(1, tokens // width)]
            mean_BD = _mean_hidden_states([ids[i] for i in batch], model)
            means.update(zip(batch, mean_BD.cpu(), strict=True))
            progress.update(len(batch))
    return torch.stack([means[i] for i in range(len(ids))])


def _mean_hidden_states(ids: list[list[int]], model: LoadedModel) -> Tensor:
    """[B, D]: `hidden_states` of texts (token ids), in one pass."""
    lengths = [len(ids_of_text) for ids_of_text in ids]
    ids_BS = padded(ids, 0).to(model.device)
    real_BS = padded([[1] * length for length in lengths], 0).to(model.device)
    with with_own_lengths(model.model, lengths):
        hidden_BSD = _before_head(model.model, ids_BS, real_BS).float()
    real_BS1 = real_BS.to(hidden_BSD.device)[..., None]
    return (hidden_BSD * real_BS1).sum(dim=1) / real_BS1.sum(dim=1)


def text_ids(texts: Sequence[str], model: LoadedModel) -> list[list[int]]:
    """The tokens of each text whose hidden states are averaged, its last `max_length` ones.

    A text without tokens has the beginning-of-text token, else the end token.
    """
    most = model.facts.max_length
    prefix = model.tokenizer.bos_token_id or model.tokenizer.eos_token_id or 0
    return [model.tokenizer(text).input_ids[-most:] or [prefix] for text in texts]


def _before_head(model: Any, ids_BS: Tensor, real_BS: Tensor) -> Tensor:
    """[B, S, D]: the input of the output head, which then computes only one token of each text."""
    inputs: list[Tensor] = []

    def keep(head: Any, args: tuple) -> tuple:
        hidden_BSD = args[0]
        inputs.append(hidden_BSD)
        return (hidden_BSD[:, -1:], *args[1:])

    handle = output_head(model).register_forward_pre_hook(keep)
    try:
        model(input_ids=ids_BS, attention_mask=real_BS, use_cache=False)
    finally:
        handle.remove()
    return inputs[0]


def text_key(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_vectors(texts: Sequence[str], path: Path) -> Tensor:
    """float32 [R, X]: a file's vectors of these texts.

    The file has `vectors` [rows, X], and `sha256` [rows, 32], uint8: the hash of each text's UTF-8
    bytes. Raises ConfigError for a file without them, and for the first text without a vector.
    """
    from safetensors.torch import load_file

    remedy = f"It must hold `vectors` and `sha256` (docs/c3po.md).\n{DEFAULT}"
    with reading(f"method.embeddings={path}", remedy):
        tensors = load_file(path)
        vectors = tensors["vectors"]
        rows = {bytes(key).hex(): row for row, key in enumerate(tensors["sha256"].tolist())}
    missing = [text for text in texts if text_key(text) not in rows]
    if missing:
        raise ConfigError(
            f"method.embeddings={path} has no vector for {len(missing)} of {len(texts)} texts. The "
            "first is:\n"
            f"{json.dumps(missing[0], ensure_ascii=False)}\nAdd them to the file (docs/c3po.md "
            f"says how). {DEFAULT}"
        )
    return vectors[[rows[text_key(text)] for text in texts]]


@lru_cache(maxsize=1)
def _encoder(name: str, device: str | None) -> Any:
    """A loaded sentence-transformers model. Raises ConfigError if it cannot be loaded."""
    from sentence_transformers import SentenceTransformer

    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    says = "cannot be loaded by sentence-transformers"
    with reading(f"method.embeddings={name}", DEFAULT, says=says):
        return SentenceTransformer(str(encoder_folder(name)), device=device, **options)
