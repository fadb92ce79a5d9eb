"""How often a model selects its experts, alone and in pairs, by groups of documents.

`SelectedExperts` observes the model and stores the experts of every token once, for all documents
that share the token with its whole prefix. `count` counts them for each document.

G = groups of documents, P = phases, T = tokens, L = MoE layers, E = experts (of the layer with the
most), K = experts per token, N = distinct tokens in `RouteTable`, parts of a batch in
`pair_counts`, W = tokens of the longest part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Tokens, in_runs, prefix_names, token_names
from moe_lab.engine.forward.forward import Observer
from moe_lab.engine.hf import Request
from moe_lab.errors import RoutingError
from moe_lab.models.lm_eval_internals import request_arguments
from moe_lab.results.response_log import request_key
from moe_lab.routing import Router, Routing

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

PHASES = ("prefill", "decode")
"""Prompt tokens, and answer tokens, generated or scored."""
LARGEST = 256 * 2**20
"""Bytes of pair counts. If they suffice, every document is a group of its own."""
LEAST_GROUPS = 50
"""The least number of groups, for more documents than that."""
TOKENS_AT_ONCE = 4096
"""Tokens whose pairs are counted at once, padding included."""


class RequestsOfDocuments(NamedTuple):
    """The requests of all tasks. Equal requests have the same key (`request_key`)."""

    documents: list[list[str]]
    """The keys of each document's requests, task by task."""
    by_key: dict[str, tuple[str, Request]]
    """Kind and request."""


def documents_of(tasks: TaskDict) -> RequestsOfDocuments:
    """The requests that lm-eval built. Each of several answers to a prompt is a request."""
    documents: list[list[str]] = []
    by_key: dict[str, tuple[str, Request]] = {}
    for task in tasks["tasks"].values():
        by_document: dict[int | None, list[str]] = {}
        for instance in task.instances:
            for repeat in range(instance.repeats or 1):
                request = Request(request_arguments(instance), repeat)
                key = request_key(instance.request_type, *request)
                by_key[key] = instance.request_type, request
                by_document.setdefault(instance.doc_id, []).append(key)
        documents += by_document.values()
    return RequestsOfDocuments(documents, by_key)


@dataclass(frozen=True)
class Read:
    """The tokens of one request, by their names (`engine/forward/batch.py`)."""

    prompt: np.ndarray
    answer: np.ndarray


@dataclass(frozen=True)
class RouteTable:
    """The experts of every distinct token."""

    names_N: np.ndarray
    """The tokens' names, ascending."""
    index: np.ndarray
    """[N, sum of K over layers]"""
    top_k: list[int]

    def of(self, names: np.ndarray) -> list[np.ndarray]:
        """The experts of these tokens by MoE layer: [tokens, K]. Raises RoutingError for an unknown
        token."""
        place = np.minimum(np.searchsorted(self.names_N, names), len(self.names_N) - 1)
        if not (self.names_N[place] == names).all():
            raise RoutingError(
                "The routing of an answered token was not recorded. Please report this."
            )
        return np.split(self.index[place], np.cumsum(self.top_k)[:-1], axis=1)


class _RoutedTokens(NamedTuple):
    """The tokens of a pass, without padding."""

    names: np.ndarray
    experts: np.ndarray
    """[tokens, sum of K over layers]"""


class SelectedExperts(Observer):
    """An observer of the unchanged model: records the experts of all tokens, and the tokens of each
    request.

    An expert with a weight of 0 is not counted. It takes L x K bytes (twice that above 255 experts)
    per distinct token, and about 16 per token of a request.
    """

    def __init__(self) -> None:
        self.reads: dict[str, list[Read]] = {}
        """By `request_key`."""
        self.experts: dict[int, int] = {}
        """Experts to choose from, per MoE layer."""
        self.top_k: dict[int, int] = {}
        """Experts per token, per MoE layer."""
        self._prompts: dict[tuple[int, ...], np.ndarray] = {}
        """The names of the tokens of each prompt (token ids)."""
        self._names = _joined([])
        """The names of the tokens of the newest pass, 0 for padding."""
        self._pass: dict[int, Tensor] = {}
        """The experts of these by MoE layer, int16 [T, K] on the device."""
        self._passes: list[_RoutedTokens] = []

    def expect(self, tokens: Tokens) -> None:
        """Keep the experts of the pass before, and name the tokens of the next one."""
        self._keep_pass()
        names_BS = tokens.names_BS()
        kind_B = np.array([self.kind(length) for length in tokens.lengths])
        names_BS = np.where(names_BS == 0, 0, names_BS + kind_B[:, None])
        self._names = names_BS.reshape(-1)

    def __call__(self, router: Router, routing: Routing) -> None:
        """Note the experts of a layer's tokens. The routing is not changed."""
        self.experts[router.layer] = routing.logits_TE.shape[-1]
        self.top_k[router.layer] = routing.index_TK.shape[-1]
        # -1 in place of an expert with a weight of 0
        index_TK = routing.index_TK.where(routing.weights_TK != 0, -1)
        self._pass[router.layer] = index_TK.to(torch.int16)

    def read(
        self, kind: str, request: Request, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        """Note the names of a request's tokens, under its key."""
        key_of_prompt = tuple(prompt)
        if key_of_prompt not in self._prompts:
            self._prompts[key_of_prompt] = prefix_names(prompt)
        prompt_names = self._prompts[key_of_prompt]
        length = len(prompt) + len(answer)
        hashes = token_names(answer, range(len(prompt), length))
        answer_names = np.cumsum(hashes) + prompt_names[-1:]
        if kind == "generate_until":
            # each new token is read when the text ends with it
            kind_of_prompt = self.kind(len(prompt))
            kinds = [self.kind(end) for end in range(len(prompt) + 1, length + 1)]
        else:
            kind_of_prompt = self.kind(length)
            kinds = [kind_of_prompt] * len(answer)
        kind_of_answer = np.array(kinds, dtype=np.int64)
        read = Read(prompt_names + kind_of_prompt, answer_names + kind_of_answer)
        key = request_key(kind, request.args, request.repeat)
        self.reads.setdefault(key, []).append(read)

    @property
    def layers(self) -> list[int]:
        """The numbers of the MoE layers so far, ascending."""
        return sorted(self.experts)

    def table(self) -> RouteTable:
        """The experts of all tokens so far."""
        self._keep_pass()
        names = np.concatenate([tokens.names for tokens in self._passes])
        index = np.concatenate([tokens.experts for tokens in self._passes])
        names_N, first_N = np.unique(names, return_index=True)
        top_k = [self.top_k[layer] for layer in self.layers]
        return RouteTable(names_N, index[first_N], top_k)

    def _keep_pass(self) -> None:
        """Copy the experts of the last forward pass from the device, without its padding."""
        if not self._pass:
            return
        index_TC = torch.cat([self._pass[layer].cpu() for layer in self.layers], dim=-1).numpy()
        real = self._names != 0
        # -1 becomes 255 in uint8, which is no expert's number, either
        dtype = np.uint8 if max(self.experts.values()) < 256 else np.int16
        self._passes.append(_RoutedTokens(self._names[real], index_TC[real].astype(dtype)))
        self._pass = {}


@dataclass(frozen=True)
class Counts:
    """Selections of routed experts. A pair of experts is counted once per token, in both orders."""

    pairs_GPLEE: np.ndarray
    """int32; the diagonal holds the selections of single experts."""
    experts: list[int]
    """Experts of each layer."""
    tokens_P: list[int]
    documents: int

    @property
    def selections_GPLE(self) -> np.ndarray:
        """int32: how often each expert is selected."""
        return np.diagonal(self.pairs_GPLEE, axis1=-2, axis2=-1)


def count(
    routes: SelectedExperts, documents: Sequence[Sequence[str]], groups: int | None = None
) -> Counts:
    """Count the selections of every document.

    The prompt that requests of a document share counts once; the answer tokens of each request
    count.

    Args:
        documents: the keys of each document's requests, all of them in `routes.reads`.
        groups: number of groups, which take documents in turn; None: a group for each document, if
            memory allows.
    """
    table = routes.table()
    experts = [routes.experts[layer] for layer in routes.layers]
    P = len(PHASES)
    L = len(experts)
    E = max(experts)
    if groups is None:
        groups = group_count(len(documents), P * L * E * E * 4)
    G = min(len(documents), groups)
    pairs_GPLEE = np.zeros((G, P, L, E, E), dtype=np.int32)
    tokens_P = [0] * P
    for phase, names_of_groups in enumerate(_counted_names(routes, documents, G)):
        tokens_P[phase] = sum(len(names) for names in names_of_groups)
        for batch in in_runs(_parts(names_of_groups), _fits_with_padding):
            index = table.of(np.concatenate([part.names for part in batch]))
            counts_NLEE = pair_counts(index, [len(part.names) for part in batch], E)
            np.add.at(pairs_GPLEE[:, phase], [part.group for part in batch], counts_NLEE)
    return Counts(pairs_GPLEE, experts, tokens_P, len(documents))


class Part(NamedTuple):
    """Some of the tokens of a group."""

    group: int
    names: np.ndarray


def _parts(names_of_groups: Sequence[np.ndarray]) -> list[Part]:
    """The tokens of all groups in parts of at most `TOKENS_AT_ONCE`, the longest first."""
    parts = []
    for group, names in enumerate(names_of_groups):
        for start in range(0, len(names), TOKENS_AT_ONCE):
            parts.append(Part(group, names[start : start + TOKENS_AT_ONCE]))
    return sorted(parts, key=lambda part: -len(part.names))


def _fits_with_padding(batch: list[Part], _: Part) -> bool:
    """Whether one part more fits into `TOKENS_AT_ONCE` tokens, each part padded to the longest
    one."""
    return len(batch[0].names) * (len(batch) + 1) <= TOKENS_AT_ONCE


def group_count(documents: int, size: int) -> int:
    """The number of groups whose counts fit into `LARGEST`, at most one for each document.

    Args:
        size: bytes of a group's counts.
    """
    return min(documents, max(LEAST_GROUPS, LARGEST // size))


def pair_counts(index: Sequence[np.ndarray], sizes: Sequence[int], E: int) -> np.ndarray:
    """int32 [N, L, E, E]: how many tokens of a part select both experts.

    The diagonal has how many tokens select the expert. One token with the experts 0 and 2 of three,
    in one layer: `pair_counts([np.array([[0, 2]])], [1], 3)` is [[[[1, 0, 1], [0, 0, 0], [1, 0,
    1]]]].

    Args:
        index: one array [T, K] per layer, the experts of the tokens of all parts, one part after
            the other. A token has no expert twice. Numbers outside of 0 to E-1 are not counted.
        sizes: the number of tokens of each part; their sum is T.
    """
    L = len(index)
    N = len(sizes)
    W = max(sizes)
    # each part is padded to W tokens, so that one matrix product counts all parts
    padded_places = [part * W + np.arange(size) for part, size in enumerate(sizes)]
    place_T = torch.from_numpy(np.concatenate(padded_places))
    # column E takes the numbers that are not counted
    selected_LTE = torch.zeros(L, N * W, E + 1)
    for selected_TE, index_TK in zip(selected_LTE, index, strict=True):
        is_expert_TK = (index_TK >= 0) & (index_TK < E)
        column_TK = np.where(is_expert_TK, index_TK, E).astype(np.int64)
        selected_TE[place_T[:, None], torch.from_numpy(column_TK)] = 1.0
    selected_LNWE = selected_LTE[..., :E].reshape(L, N, W, E)
    counts_LNEE = (selected_LNWE.mT @ selected_LNWE).round().int()
    return counts_LNEE.transpose(0, 1).numpy()


def _counted_names(
    routes: SelectedExperts, documents: Sequence[Sequence[str]], G: int
) -> list[list[np.ndarray]]:
    """The names of the counted tokens, by phase (`PHASES`) and group."""
    prompts_of_groups = []
    answers_of_groups = []
    for group in range(G):
        prompts: list[np.ndarray] = []
        answers: list[np.ndarray] = []
        for keys in documents[group::G]:
            reads: list[Read] = []
            for key in keys:
                reads += routes.reads[key]
            prompts += _distinct_prompts(reads)
            answers += [read.answer for read in reads]
        prompts_of_groups.append(_joined(prompts))
        answers_of_groups.append(_joined(answers))
    return [prompts_of_groups, answers_of_groups]


def _distinct_prompts(reads: Sequence[Read]) -> list[np.ndarray]:
    """The prompts of a document's requests, equal ones once."""
    prompts: dict[tuple[int, int], np.ndarray] = {}
    for read in reads:
        last_name = int(read.prompt[-1])  # that of the whole prompt
        prompts[len(read.prompt), last_name] = read.prompt
    return list(prompts.values())


def _joined(names: list[np.ndarray]) -> np.ndarray:
    """int64: all names, one array after the other; empty without any."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *names])
