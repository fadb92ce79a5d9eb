"""Traces: one JSON line per question with its pathways, the data of the paper's Figures 5 to 8.

A line is appended before the question's answer is stored, so every stored answer has one. After a kill some questions
have two lines; the last one counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from moe_lab.engine.scoring.token_scores import Scores
from moe_lab.methods.c3po.optimizer import Optimized
from moe_lab.methods.references.embeddings import text_key
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.results.atomic import writing

FILE = "traces.jsonl"
DIGITS = 6
"""Significant digits of numbers."""


class Trace:
    """Writes `traces.jsonl` in a run's folder.

    A line holds: prompt (SHA-256 of its text), layers (numbers of the re-mixed MoE layers), before and after (their
    probabilities of all experts, [tokens][layers][experts]), core ([tokens][layers][core experts]: expert numbers),
    neighbours (reference, its number in the set; text; distance; weight, its share of the kernel; pathway), losses (on
    the neighbours, [states]), continuations (texts) and scores (log-likelihoods of these, [states][continuations]).
    States are the untouched pathway, then that after every step.
    """

    def __init__(self, folder: Path):
        self.path = folder / FILE

    def write(
        self,
        texts: Sequence[tuple[str, list[str]]],
        found: Optimized,
        states: Sequence[Sequence[Scores]],
        references: ReferenceSet | None,
    ) -> None:
        """Append the lines of N questions: `texts` are (prompt, continuations), `states` [states][N] scores."""
        changed = found.pathways
        lines = [
            {
                "prompt": text_key(prompt),
                "layers": changed.layers,
                "before": numbers(changed.clean_NWLE[n]),
                "after": numbers(changed.probs_NWLE()[n]),
                "core": changed.core[n].tolist(),
                "neighbours": _neighbours(n, found, references),
                "losses": numbers(found.losses[:, n]),
                "continuations": continuations,
                "scores": [[score for score, _ in scores[n]] for scores in states],
            }
            for n, (prompt, continuations) in enumerate(texts)
        ]
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def _neighbours(n: int, found: Optimized, references: ReferenceSet | None) -> list[dict[str, Any]]:
    if references is None or found.near is None or found.weight_NK is None:
        return []
    share_K = found.weight_NK[n] / found.weight_NK[n].sum()
    return [
        {
            "reference": r,
            "text": references.texts[r],
            "distance": numbers(found.near.distance_QK[n, j]),
            "weight": numbers(share_K[j]),
            "pathway": numbers(references.pathway_RWME[r][:, found.pathways.layers]),
        }
        for j, r in enumerate(found.near.index_QK[n].tolist())
        if r >= 0
    ]


def numbers(tensor: Tensor) -> Any:
    """A number, or nested lists of them; NaN as None."""
    return _rounded(tensor.detach().cpu().double().tolist())


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return None if value != value else float(f"{value:.{DIGITS}g}")
