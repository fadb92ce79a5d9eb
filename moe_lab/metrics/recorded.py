"""Routed experts that a serving engine recorded, read from a file and counted.

A file holds requests. Each has the experts of its tokens, [T, L, K], and how many of the tokens are the prompt's.

    .jsonl   a request per line: `routed_experts` as nested lists, as base64 of a .npy file (vLLM's server) or as base64
             of int32 (SGLang), and `prompt_tokens`
    .npz     an array per request, and `prompt_tokens`, int [requests]

T = tokens of a request, L = MoE layers, K = experts per token, E = experts, G = groups of requests.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moe_lab.errors import ConfigError, reading
from moe_lab.metrics.counts import PHASES, TOKENS_AT_ONCE, Counts, group_count, pair_counts

KEY = "metrics_from"
ROUTES, PROMPT = "routed_experts", "prompt_tokens"
NPY = b"\x93NUMPY"
"""The beginning of a .npy file."""


@dataclass(frozen=True, kw_only=True)
class Routers:
    """The routers whose choices a file must have."""

    experts: list[int]
    """Of each MoE layer."""
    top_k: int
    places: list[int]
    """The number of each MoE layer among all layers of the model."""
    layers: int
    """All layers of the model, dense ones included."""


@dataclass(frozen=True)
class Recorded:
    """The routed experts of a request."""

    index_TLK: np.ndarray
    """int64"""
    prompt: int
    """Tokens of the prompt, the first ones."""


def read_recorded(path: str | Path, routers: Routers) -> list[Recorded]:
    """The requests of a file. Raises ConfigError, which names file and line, for one that does not fit the model."""
    file = Path(path).expanduser()
    if file.suffix not in (".jsonl", ".npz"):
        raise ConfigError(f"{KEY}={path}: the name must end in .jsonl or .npz (docs/expert_metrics.md).")
    with reading(f"{KEY}={path}"):
        rows = list(_lines(file) if file.suffix == ".jsonl" else _arrays(file))
    if not rows:
        raise ConfigError(f"{KEY}={path} has no request. Record some, as docs/expert_metrics.md shows.")
    return [_request(place, routes, prompt, routers) for place, routes, prompt in rows]


def _lines(file: Path) -> Iterator[tuple[str, Any, Any]]:
    """(place, routes, prompt tokens) of each line."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{KEY}={file}, line {number}"
        with reading(place, says="is not JSON"):
            row = json.loads(line)
        if not isinstance(row, dict) or not {ROUTES, PROMPT} <= row.keys():
            raise ConfigError(f"{place}: a request needs the keys {ROUTES} and {PROMPT}.")
        yield place, row[ROUTES], row[PROMPT]


def _arrays(file: Path) -> Iterator[tuple[str, Any, Any]]:
    """(place, routes, prompt tokens) of each array but `prompt_tokens`."""
    with np.load(file, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    prompts = found.pop(PROMPT, np.zeros(0))
    if prompts.shape != (len(found),):
        raise ConfigError(
            f"{KEY}={file} has {len(found)} requests, and its array {PROMPT} has the shape {prompts.shape}. Give one "
            "number for each request."
        )
    for (name, routes), prompt in zip(found.items(), prompts.tolist(), strict=True):
        yield f"{KEY}={file}, array {name}", routes, prompt


def _request(place: str, routes: Any, prompt: Any, routers: Routers) -> Recorded:
    index_TLK = _decoded(place, routes, routers)
    T, L, K = index_TLK.shape
    if L == routers.layers:
        index_TLK = index_TLK[:, routers.places]
    elif L != len(routers.experts):
        expected = " or ".join(str(count) for count in sorted({len(routers.experts), routers.layers}))
        raise ConfigError(
            f"{place}: {L} layers, and the model has {expected}. Give the model that was served."
        )
    if routers.top_k != K:
        raise ConfigError(
            f"{place}: {K} experts per token, and the model takes {routers.top_k}. Give the model that was served; "
            "shared experts do not count."
        )
    # engines record all tokens but the last one, which belongs to the prompt if there is no answer
    if isinstance(prompt, bool) or not isinstance(prompt, int) or not 0 <= prompt <= T + 1:
        raise ConfigError(
            f"{place}: {PROMPT}={prompt}, and {T} tokens are recorded. Give a number from 0 to {T + 1}."
        )
    _check_experts(place, index_TLK, routers)
    return Recorded(index_TLK, min(prompt, T))


def _decoded(place: str, routes: Any, routers: Routers) -> np.ndarray:
    """int64 [T, L, K]"""
    with reading(place, says=f"has {ROUTES} that cannot be decoded"):
        found = _from_base64(routes, routers) if isinstance(routes, str) else np.asarray(routes)
    if found.ndim != 3 or found.dtype.kind not in "iu" or not found.size:
        raise ConfigError(
            f"{place}: {ROUTES} has the shape {found.shape} and the type {found.dtype}. Integers [tokens, layers, "
            "experts per token] are needed."
        )
    return found.astype(np.int64)


def _from_base64(text: str, routers: Routers) -> np.ndarray:
    content = base64.b64decode(text, validate=True)
    if content.startswith(NPY):
        array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
        return array
    values = np.frombuffer(content, dtype="<i4")
    counts = {len(routers.experts), routers.layers}
    fits = [layers for layers in sorted(counts) if not len(values) % (layers * routers.top_k)]
    if len(fits) != 1:
        which = f"{'both' if fits else 'no'} multiples of {' and '.join(map(str, sorted(counts)))}"
        raise ValueError(
            f"{len(values)} numbers are {which} layers x {routers.top_k} experts per token. Give a .npy file or lists, "
            "which have their shape"
        )
    return values.reshape(-1, fits[0], routers.top_k)


def _repeats(index_TLK: np.ndarray) -> np.ndarray:
    """bool [T, L]: whether an expert is listed twice."""
    ordered = np.sort(index_TLK, axis=-1)
    return (ordered[..., 1:] == ordered[..., :-1]).any(axis=-1)


def _check_experts(place: str, index_TLK: np.ndarray, routers: Routers) -> None:
    most_L1 = np.array(routers.experts)[:, None]
    for wrong, says in (
        (((index_TLK < 0) | (index_TLK >= most_L1)).any(axis=-1), "there is no such expert"),
        (_repeats(index_TLK), "an expert is listed twice (zeros: a token that was not routed)"),
    ):
        if wrong.any():
            token, layer = np.argwhere(wrong)[0].tolist()
            raise ConfigError(
                f"{place}: token {token}, MoE layer {layer} has the experts {index_TLK[token, layer].tolist()} of "
                f"{routers.experts[layer]}: {says}. Record again, or leave the token out."
            )


def count_recorded(requests: Sequence[Recorded], experts: list[int]) -> Counts:
    """Count the selections of every request, as those of a run's documents are counted."""
    L, E = len(experts), max(experts)
    G = group_count(len(requests), len(PHASES) * L * E * E * 4)
    pairs_GPLEE = np.zeros((G, len(PHASES), L, E, E), dtype=np.int32)
    tokens_P = [0] * len(PHASES)
    for number, request in enumerate(requests):
        parts = (request.index_TLK[: request.prompt], request.index_TLK[request.prompt :])
        for phase, index_TLK in enumerate(parts):
            tokens_P[phase] += len(index_TLK)
            for start in range(0, len(index_TLK), TOKENS_AT_ONCE):
                part = index_TLK[start : start + TOKENS_AT_ONCE]
                counted = pair_counts(list(part.transpose(1, 0, 2)), [(0, part)], E)
                pairs_GPLEE[number % G, phase] += counted[0]
    return Counts(pairs_GPLEE, experts, tokens_P, len(requests))
