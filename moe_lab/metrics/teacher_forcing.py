"""Teacher-forced passes over tokenized examples under a routing policy: correct predictions and selected experts.

Padding follows the last token of an example. It is routed, but never counted.

N = examples (rows), G = groups of them, B = examples of a pass, S = tokens of the longest, T = B x S, V = vocabulary,
L = MoE layers, E = experts (of the layer with the most), K = experts per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from moe_lab.engine.forward.batch import Tokens, prefix_names
from moe_lab.engine.forward.observer import Observer
from moe_lab.engine.pass_size import in_step, pass_budget
from moe_lab.metrics.counts import group_count, pair_counts
from moe_lab.routing import Router, Routing, routed

NO_LABEL = -100
"""Label of tokens that are not predicted, as in transformers."""

TokenizedExample = Mapping[str, Sequence[int]]
"""`input_ids` and `labels` of the same length; a label is the token itself or NO_LABEL."""


def right_tokens(model: nn.Module, rows: Sequence[TokenizedExample], policy: Observer) -> np.ndarray:
    """int64 [N]: the number of correctly predicted labels of each row under the policy.

    The passes run in evaluation mode, without gradients or random numbers. Then each module gets its own mode again.
    """
    device = next(model.parameters()).device
    right_N = np.zeros(len(rows), dtype=np.int64)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), routed(model, policy):
            budget = pass_budget(model)
            # each token has a row of logits
            for numbers in _passes(rows, in_step(model, int(budget.tokens / budget.size(1, 1)))):
                tokens = _tokens([rows[number]["input_ids"] for number in numbers], device)
                policy.expect(tokens)
                assert tokens.real_BS is not None
                logits_BSV = model(
                    input_ids=tokens.ids_BS, attention_mask=tokens.real_BS.long(), use_cache=False
                ).logits
                right_N[numbers] = _right(logits_BSV, [rows[number]["labels"] for number in numbers])
    finally:
        for module, mode in modes.items():
            module.training = mode
    return right_N


def labelled_tokens(rows: Sequence[TokenizedExample]) -> np.ndarray:
    """int64 [N]: the number of predicted tokens of each example; the first token is never predicted."""
    labels = [rows[number]["labels"] for number in range(len(rows))]  # a data set is indexed, not iterated
    return np.array([sum(label != NO_LABEL for label in own[1:]) for own in labels], dtype=np.int64)


class PairCounts(Observer):
    """An observer of the unchanged model that counts experts, alone and in pairs, in one pass over N examples."""

    def __init__(self, rows: int):
        self.experts: dict[int, int] = {}
        """Experts to choose from, per MoE layer."""
        self.top_k: dict[int, int] = {}
        self.tokens = 0
        self._rows = rows
        self._at_N = torch.zeros(0, dtype=torch.long)
        self._lengths: list[int] = []
        self._index: dict[int, Tensor] = {}
        self._seen = 0
        self._pairs_GLEE: np.ndarray | None = None

    def expect(self, tokens: Tokens) -> None:
        self._keep_pass()
        assert tokens.real_BS is not None
        real_BS = tokens.real_BS.cpu()
        self._at_N = real_BS.reshape(-1).nonzero()[:, 0]
        self._lengths = real_BS.sum(dim=1).tolist()

    def __call__(self, router: Router, routing: Routing) -> None:
        self.experts[router.layer] = routing.logits_TE.shape[-1]
        self.top_k[router.layer] = routing.index_TK.shape[-1]
        self._index[router.layer] = routing.index_TK[self._at_N.to(routing.index_TK.device)]

    @property
    def pairs_GLEE(self) -> np.ndarray:
        """int64: tokens of each group of rows that select both experts; on the diagonal, that select the expert."""
        self._keep_pass()
        assert self._pairs_GLEE is not None
        return self._pairs_GLEE

    @property
    def experts_of_layers(self) -> list[int]:
        return [self.experts[layer] for layer in sorted(self.experts)]

    def _keep_pass(self) -> None:
        if not self._index:
            return
        index = [self._index[layer].cpu().numpy() for layer in sorted(self._index)]
        L, E = len(index), max(self.experts.values())
        if self._pairs_GLEE is None:
            G = group_count(self._rows, L * E * E * 8)
            self._pairs_GLEE = np.zeros((G, L, E, E), dtype=np.int64)
        parts = [(row, np.zeros(length)) for row, length in enumerate(self._lengths)]
        groups = (self._seen + np.arange(len(parts))) % len(self._pairs_GLEE)
        np.add.at(self._pairs_GLEE, groups, pair_counts(index, parts, E))
        self._seen += len(parts)
        self.tokens += sum(self._lengths)
        self._index = {}


class LabelledCounts(Observer):
    """An observer of the unchanged model that counts experts at the labelled tokens of the rows.

    A decision counts if the token that the router routes has a label.
    """

    def __init__(self, rows: Sequence[TokenizedExample]):
        self.experts: dict[int, int] = {}
        """Experts to choose from, per MoE layer."""
        self.tokens = 0
        self._rows = rows
        self._order = iter(_longest_first(rows))
        self._at_N = torch.zeros(0, dtype=torch.long)
        self._counts: dict[int, Tensor] = {}

    def expect(self, tokens: Tokens) -> None:
        own = [self._rows[number]["labels"] for number in islice(self._order, len(tokens.ids_BS))]
        self._at_N = (padded(own, NO_LABEL) != NO_LABEL).reshape(-1).nonzero()[:, 0]
        self.tokens += len(self._at_N)

    def __call__(self, router: Router, routing: Routing) -> None:
        E = self.experts[router.layer] = routing.logits_TE.shape[-1]
        chosen_NK = routing.index_TK[self._at_N.to(routing.index_TK.device)]
        counts_E = torch.zeros(E, dtype=torch.long, device=chosen_NK.device)
        counts_E.scatter_add_(0, chosen_NK.reshape(-1), torch.ones_like(chosen_NK).reshape(-1))
        self._counts[router.layer] = self._counts.get(router.layer, 0) + counts_E

    @property
    def selections_LE(self) -> np.ndarray:
        """int64: labelled tokens that select each expert."""
        E = max(self.experts.values())
        counts = [self._counts[layer].cpu().numpy() for layer in sorted(self._counts)]
        return np.stack([np.pad(own, (0, E - len(own))) for own in counts])


def _passes(rows: Sequence[TokenizedExample], tokens: int) -> Iterator[list[int]]:
    """Row numbers of each pass of at most `tokens`, with padding, or of a single longer row; the longest rows first."""
    numbers: list[int] = []
    for number in _longest_first(rows):
        if numbers and len(rows[numbers[0]]["input_ids"]) * (len(numbers) + 1) > tokens:
            yield numbers
            numbers = []
        numbers.append(number)
    if numbers:
        yield numbers


def _longest_first(rows: Sequence[TokenizedExample]) -> list[int]:
    return sorted(range(len(rows)), key=lambda n: -len(rows[n]["input_ids"]))


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """int64 [B, S]: rows of different lengths, with `value` after the end of each."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def _tokens(ids: Sequence[Sequence[int]], device: torch.device) -> Tokens:
    ids_BS = padded(ids, 0)
    real_BS = padded([[1] * len(own) for own in ids], 0).bool()
    B, S = ids_BS.shape

    def names_BS() -> np.ndarray:
        names = np.zeros((B, S), dtype=np.int64)
        for row, own in enumerate(ids):
            names[row, : len(own)] = prefix_names(own)
        return names

    return Tokens(
        ids_BS=ids_BS.to(device),
        position_BS=torch.arange(S, device=device).expand(B, S),
        visible_BSK=None,
        logit_positions_M=torch.zeros(0, dtype=torch.long),
        noise_key_B=torch.zeros(B, dtype=torch.long),
        sample_index_B=torch.zeros(B, dtype=torch.long),
        most_logits=0,
        real_BS=real_BS.to(device),
        names_BS=names_BS,
    )


def _right(logits_BSV: Tensor, labels: Sequence[Sequence[int]]) -> np.ndarray:
    """int64 [B]: the number of labels of each row that the logits predict."""
    labels_BS = padded(labels, NO_LABEL)
    predicted_BS = logits_BSV[:, :-1].argmax(dim=-1).cpu()
    return (predicted_BS == labels_BS[:, 1:]).sum(dim=1).numpy()
