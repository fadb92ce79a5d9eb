"""The expert metrics of a model in training, on held-out tokenized examples (MoE-Bench, section 4.2).

Counted metrics count the tokens of the rows. Accuracy is the share of answer tokens that the model predicts, given the
true tokens before them. Intervention metrics are the accuracy lost under a routing policy.

N = rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from moe_lab.engine.forward.observer import Observer
from moe_lab.metrics.by_document import without_arrays
from moe_lab.metrics.entropies import entropies_of
from moe_lab.metrics.metric import Selections
from moe_lab.metrics.ratio import ratio
from moe_lab.metrics.registry import intervention_metrics
from moe_lab.metrics.teacher_forcing import PairCounts, TokenizedExample, labelled_tokens, right_tokens


def measure(model: nn.Module, rows: Sequence[TokenizedExample]) -> dict[str, Any]:
    """Accuracy and every expert metric on the rows, with 95% intervals over rows.

    Each value is {"value", "ci95"}; counted metrics also have their largest possible value and their layers. Capacity
    is null for a model whose tokens take all of its experts.
    """
    start = time.perf_counter()
    counted, answers_N = PairCounts(len(rows)), labelled_tokens(rows)
    right_N = right_tokens(model, rows, counted)
    pairs_GLEE, experts = counted.pairs_GLEE, counted.experts_of_layers

    def lost(policy: Observer) -> dict[str, Any]:
        return ratio(right_N - right_tokens(model, rows, policy), answers_N)

    counts_LE = np.diagonal(pairs_GLEE.sum(axis=0), axis1=-2, axis2=-1)
    selections = Selections(counts_LE, experts, [counted.top_k[layer] for layer in sorted(counted.top_k)])
    changed = {name: metric.measure(selections, lost) for name, metric in intervention_metrics().items()}
    return {
        "rows": len(rows),
        "tokens": counted.tokens,
        "answer_tokens": int(answers_N.sum()),
        "accuracy": ratio(right_N, answers_N),
        **without_arrays(entropies_of(pairs_GLEE, experts))[0],
        **changed,
        "seconds": time.perf_counter() - start,
    }
