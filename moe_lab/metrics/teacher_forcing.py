"""Teacher-forced passes over tokenized examples under a routing policy: correct predictions and
selected experts.

Padding follows the last token of an example. It is routed, but never counted.

N = examples (rows), G = groups of them, B = examples of a pass, S = tokens of the longest, T = B x
S, V = vocabulary, L = MoE layers, E = experts (of the layer with the most), K = experts per token.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from moe_lab.engine.forward.batch import TokenTree, collate, in_runs, prefix_names
from moe_lab.engine.forward.forward import Observer
from moe_lab.engine.forward.rotary import RotaryHooks
from moe_lab.engine.pass_size import pass_budget
from moe_lab.metrics.counts import Counts, Read, SelectedExperts, count
from moe_lab.routing import routed

NO_LABEL = -100
"""Label of tokens that are not predicted, as in transformers."""

TokenizedExample = Mapping[str, Sequence[int]]
"""`input_ids` and `labels` of the same length; a label is the token itself or NO_LABEL."""


def right_tokens(
    model: nn.Module, rows: Sequence[TokenizedExample], policy: Observer
) -> np.ndarray:
    """int64 [N]: the number of correctly predicted labels of each row under the policy.

    The passes run in evaluation mode, without gradients or random numbers. Then each module gets
    its own mode again.
    """
    device = next(model.parameters()).device
    right_N = np.zeros(len(rows), dtype=np.int64)
    with evaluating(model), torch.no_grad(), ExitStack() as stack:
        rotary = RotaryHooks(model)
        policy.kind = rotary.kind
        stack.enter_context(routed(model, policy))
        rotary.install(stack)
        for numbers in _passes(model, rows):
            trees = [TokenTree(rows[number]["input_ids"], []) for number in numbers]
            tokens = collate(trees, 0, device)
            policy.expect(tokens)
            rotary.expect(tokens.lengths)
            logits_BSV = model(
                input_ids=tokens.ids_BS, attention_mask=tokens.real_BS.long(), use_cache=False
            ).logits
            predicted_BS = logits_BSV[:, :-1].argmax(dim=-1).cpu()
            labels_BS = padded([rows[number]["labels"] for number in numbers], NO_LABEL)
            right_N[numbers] = (predicted_BS == labels_BS[:, 1:]).sum(dim=1).numpy()
    return right_N


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the context the model is in evaluation mode. Then each module gets its own mode
    again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _passes(model: nn.Module, rows: Sequence[TokenizedExample]) -> Iterator[list[int]]:
    """The numbers of the rows of each pass, the longest rows first."""
    most_tokens = _most_tokens(model)

    def fits(pass_rows: Sequence[int], row: int) -> bool:
        """Whether a pass may take one more row, padded to its first one, the longest."""
        longest = len(rows[pass_rows[0]]["input_ids"])
        return longest * (len(pass_rows) + 1) <= most_tokens

    return in_runs(_longest_first(rows), fits)


def _most_tokens(model: nn.Module) -> int:
    """The most tokens of a pass in which each token has a row of logits.

    It is the same in all processes of a sharded training, which make the same passes.
    """
    budget = pass_budget(model)
    most_tokens = int(budget.tokens / budget.size(1, 1))
    processes = getattr(model, "fsdp_size", None) or 1
    if processes > 1:
        least = torch.tensor(most_tokens)
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
        most_tokens = int(least)
    return most_tokens


def labelled_tokens(rows: Sequence[TokenizedExample]) -> np.ndarray:
    """int64 [N]: the number of predicted tokens of each example; the first token is never
    predicted."""
    counts = []
    for number in range(len(rows)):  # a data set is indexed, not iterated
        predicted = rows[number]["labels"][1:]
        counts.append(sum(label != NO_LABEL for label in predicted))
    return np.array(counts, dtype=np.int64)


def count_rows(routes: SelectedExperts, rows: Sequence[TokenizedExample]) -> Counts:
    """The experts of all tokens of the rows that `right_tokens` has read. A row is a document, all
    of it a prompt."""
    no_tokens = np.zeros(0, dtype=np.int64)
    reads = {}
    documents = []
    for number in _longest_first(rows):
        key = str(number)
        reads[key] = [Read(_names(routes, rows[number]), no_tokens)]
        documents.append([key])
    routes.reads = reads
    return count(routes, documents)


class LabelledSelections(NamedTuple):
    """How often experts are selected for labelled tokens."""

    counts_LE: np.ndarray
    """int64"""
    tokens: int
    """The number of labelled tokens."""


def labelled_selections(
    routes: SelectedExperts, rows: Sequence[TokenizedExample]
) -> LabelledSelections:
    """The selections for the labelled tokens of the rows that `right_tokens` has read.

    A decision counts if the token that the router routes has a label.
    """
    names = []
    for number in range(len(rows)):
        row = rows[number]
        has_label = np.asarray(row["labels"]) != NO_LABEL
        names.append(_names(routes, row)[has_label])
    experts_of_layers = routes.table().of(np.concatenate(names))
    E = max(routes.experts.values())
    selections = []
    for index_TK in experts_of_layers:
        selections.append(np.bincount(index_TK.reshape(-1), minlength=E))
    return LabelledSelections(np.stack(selections), len(experts_of_layers[0]))


def _names(routes: SelectedExperts, row: TokenizedExample) -> np.ndarray:
    """int64 [T]: the names of a row's tokens, as `SelectedExperts` has them."""
    ids = row["input_ids"]
    return prefix_names(ids) + routes.kind(len(ids))


def _longest_first(rows: Sequence[TokenizedExample]) -> list[int]:
    """The numbers of the rows, those of the longest ones first."""
    return sorted(range(len(rows)), key=lambda number: -len(rows[number]["input_ids"]))


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """int64 [B, S]: rows of different lengths, with `value` after the end of each."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)
