"""Embeddings of texts: the evaluated model's hidden states, a sentence-transformers model, or vectors from a file.

R = texts, X = size of an embedding, B = texts of a pass, S = tokens of the longest, D = hidden size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from moe_lab.errors import ConfigError
from moe_lab.models.hub.offline import is_offline
from moe_lab.progress import Progress
from moe_lab.results.atomic import write_atomically

if TYPE_CHECKING:
    from moe_lab.models.load import LoadedModel

PASS_TOKENS = {"cpu": 2048}
"""Tokens of one forward pass, padding included, by device type; 16384 elsewhere."""
SHOWN = 256
"""Texts from which on a bar shows how far they are."""
BUILT_IN = "sentence_transformers."
"""The beginning of the names of sentence-transformers' own modules."""
DEFAULT = "Leave method.embeddings out: the evaluated model's own hidden states need nothing."


def embed(
    texts: Sequence[str], how: str | Path | None, model: LoadedModel | None, mean_X: Tensor | None = None
) -> Tensor:
    """float32 [R, X] on the CPU, rows of unit length.

    Args:
        how: None: mean over the tokens of `model`'s last hidden states (a forward pass over each text); a
            `.safetensors` file of vectors (`write_vectors`); else a sentence-transformers model, by name or folder.
        mean_X: subtracted from each vector first. Hidden states share a large common part, which hides differences.

    Raises ConfigError where the vectors cannot be had, with the way that always works.
    """
    if how is None:
        assert model is not None, "hidden states need the model"
        vectors_RX = hidden_states(texts, model)
    elif Path(how).suffix == ".safetensors":
        vectors_RX = read_vectors(texts, Path(how).expanduser())
    else:
        vectors_RX = _sentence_transformer(str(Path(how).expanduser()), texts, model)
    vectors_RX = vectors_RX.float().cpu()
    return torch.nn.functional.normalize(vectors_RX if mean_X is None else vectors_RX - mean_X, dim=1)


def embedding_identity(how: str | Path | None) -> dict[str, Any]:
    """All that determines embeddings beside the evaluated model; a file and a folder count by their content.

    Raises ConfigError, before anything is computed, for a file or a package that is not there.
    """
    from moe_lab.models.file_digest import digest_of
    from moe_lab.models.identity import folder_content

    if how is None:
        return {"embeddings": "hidden states"}
    path = Path(how).expanduser()
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise ConfigError(f"method.embeddings={how}: there is no such file. {DEFAULT}")
        return {"embeddings": digest_of(path)}
    if find_spec("sentence_transformers") is None:
        raise ConfigError(
            f"method.embeddings={how} is a sentence-transformers model, and that package is not installed: "
            f"pip install sentence-transformers.\n{DEFAULT}"
        )
    if path.is_dir():
        _refuse_code(path)
        return {"embeddings": {str(f.relative_to(path)): folder_content(f) for f in _folders(path)}}
    return {"embeddings": str(how)}


def _refuse_code(path: Path) -> None:
    """Raise ConfigError for a folder whose modules are classes of its own; sentence-transformers 5 would run them."""
    modules = path / "modules.json"
    try:
        listed = json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else []
        foreign = [str(each["type"]) for each in listed if not str(each["type"]).startswith(BUILT_IN)]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"method.embeddings={path}: {modules} is damaged. Save the model again. {DEFAULT}"
        ) from error
    if foreign:
        raise ConfigError(
            f"method.embeddings={path} needs code of its own ({modules.name} names {foreign[0]}), which is never run. "
            f"{DEFAULT}"
        )


def _folders(path: Path) -> list[Path]:
    return [path, *sorted(folder for folder in path.rglob("*") if folder.is_dir())]


@torch.inference_mode()
def hidden_states(texts: Sequence[str], model: LoadedModel) -> Tensor:
    """float32 [R, D]: mean over each text's tokens of the last hidden states; long texts lose their beginning.

    Texts of like length go through one pass, padded on the right, where no token of a causal model can see it.
    """
    ids = text_ids(texts, model)
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    budget = PASS_TOKENS.get(model.device.type, 16384)
    found: dict[int, Tensor] = {}
    with Progress(len(ids), "embeddings", "text", shown=len(ids) >= SHOWN) as progress:
        while len(found) < len(ids):
            width = len(ids[order[len(found)]])
            batch = order[len(found) : len(found) + max(1, budget // width)]
            means = _means([ids[i] for i in batch], model)
            found.update(zip(batch, means, strict=True))
            progress.update(len(batch))
    return torch.stack([found[i] for i in range(len(ids))]) if ids else torch.zeros(0, 0)


def text_ids(texts: Sequence[str], model: LoadedModel) -> list[list[int]]:
    """The tokens whose hidden states stand for a text."""
    most = model.facts.max_length
    prefix = model.tokenizer.bos_token_id or model.tokenizer.eos_token_id or 0
    return [model.tokenizer(text).input_ids[-most:] or [prefix] for text in texts]


def _means(batch: list[list[int]], model: LoadedModel) -> Tensor:
    """float32 [B, D]"""
    width = max(map(len, batch))
    ids_BS = torch.tensor([ids + [0] * (width - len(ids)) for ids in batch], device=model.device)
    real_BS = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in batch], device=model.device)
    hidden_BSD = _before_head(model.model, ids_BS, real_BS).float()
    real_BS1 = real_BS.to(hidden_BSD.device)[..., None]
    return ((hidden_BSD * real_BS1).sum(dim=1) / real_BS1.sum(dim=1)).cpu()


def _before_head(model: Any, ids_BS: Tensor, real_BS: Tensor) -> Tensor:
    """[B, S, D]: what the output head is given; it computes one token of each text only."""
    seen: list[Tensor] = []

    def note(head: Any, args: tuple) -> tuple:
        seen.append(args[0])
        return (args[0][:, -1:], *args[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(note)
    try:
        model(input_ids=ids_BS, attention_mask=real_BS, use_cache=False)
    finally:
        handle.remove()
    return seen[0]


def text_key(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_vectors(texts: Sequence[str], embed: Callable[[list[str]], Any], path: Path | str) -> None:
    """Write vectors of texts for `method.embeddings=<path>`, e.g. from an environment with another transformers.

    The file holds `vectors` [R, X], float32, and `sha256` [R, 32], uint8: of each text's UTF-8 bytes.

    Args:
        embed: gives [R, X], a tensor or an array, of a list of R texts.
    """
    from safetensors.torch import save

    unique = list(dict.fromkeys(texts))
    keys = [list(bytes.fromhex(text_key(text))) for text in unique]
    vectors = torch.as_tensor(embed(unique)).float().contiguous()
    write_atomically(Path(path), save({"vectors": vectors, "sha256": torch.tensor(keys, dtype=torch.uint8)}))


def read_vectors(texts: Sequence[str], path: Path) -> Tensor:
    """float32 [R, X]: the file's vectors of these texts. Raises ConfigError naming a text that has none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        vectors, keys = tensors["vectors"], tensors["sha256"]
    except (OSError, SafetensorError, KeyError) as error:
        raise ConfigError(
            f"method.embeddings={path} cannot be read: {error}.\nIt must hold `vectors` and `sha256`, as "
            f"moe_lab.methods.references.embeddings.write_vectors writes them. {DEFAULT}"
        ) from error
    rows = {bytes(key).hex(): row for row, key in enumerate(keys.tolist())}
    missing = [text for text in texts if text_key(text) not in rows]
    if missing:
        raise ConfigError(
            f"method.embeddings={path} has no vector of {len(missing)} of {len(texts)} texts, the first of them:\n"
            f"{json.dumps(missing[0], ensure_ascii=False)}\nAdd them to the file (docs/c3po.md says how). {DEFAULT}"
        )
    return vectors[[rows[text_key(text)] for text in texts]]


def _sentence_transformer(name: str, texts: Sequence[str], model: LoadedModel | None) -> Tensor:
    encoder = _encoder(name, None if model is None else str(model.device), is_offline())
    if not texts:
        return torch.zeros(0, 0)
    return encoder.encode(list(texts), convert_to_tensor=True, show_progress_bar=len(texts) >= SHOWN)


@lru_cache(maxsize=1)
def _encoder(name: str, device: str | None, offline: bool) -> Any:
    from sentence_transformers import SentenceTransformer

    try:
        return SentenceTransformer(name, device=device, trust_remote_code=False, local_files_only=offline)
    except (OSError, ValueError, ImportError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"method.embeddings={name}: no sentence-transformers model can be loaded{' offline' if offline else ''} "
            f"under this name or from this folder. {reason}\n{DEFAULT}"
        ) from error
