"""Traces of `method=c3po`: the pathways of scored questions, before and after their optimization.

N = questions, W = re-routed tokens of each, L = optimized MoE layers, E = experts, K = neighbours
of each question, R = references.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from moe_lab.engine.scoring import Scores
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.methods.references.embeddings import text_key
from moe_lab.methods.references.neighbours import Neighbours
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.results.atomic import json_line, writing

TRACES = "traces.jsonl"
"""File in the run's folder with a line for each scored question (`write_traces`)."""
DIGITS = 6
"""Significant digits of numbers."""


@dataclass(frozen=True)
class Optimized:
    """The optimized pathways of N questions."""

    pathways: Pathways
    losses: Tensor
    """float32 [states, N]: on the neighbours, of the original pathway and after every step."""
    near: Neighbours | None = None
    """None for the oracle."""
    weight_NK: Tensor | None = None
    """Kernel weights of any scale."""


def write_traces(
    file: Path,
    texts: Sequence[tuple[str, list[str]]],
    optimized: Optimized,
    states: Sequence[Sequence[Scores]],
    references: ReferenceSet | None,
) -> None:
    """Append lines for N questions to `traces.jsonl`, the data of the paper's Figures 5 to 8.

    The states of a question are its original pathway and the pathway after every step. A line has:

    - prompt: SHA-256 of its text
    - layers: numbers of the re-mixed MoE layers
    - before, after: probabilities of all experts, [tokens][layers][experts]
    - core: expert numbers, [tokens][layers][core experts]
    - neighbours: reference (its number in the set), text, distance, weight (its share of the
      kernel) and pathway of each
    - losses: on the neighbours, [states]
    - continuations: texts
    - scores: log-likelihoods of the continuations, [states][continuations]

    Args:
        texts: (prompt, continuations) of each question.
        states: [states][N] scores.
    """
    pathways = optimized.pathways
    lines = []
    for n, (prompt, continuations) in enumerate(texts):
        scores_of_states = []
        for scores_N in states:
            scores_of_states.append([log_likelihood for log_likelihood, _ in scores_N[n]])
        line = {
            "prompt": text_key(prompt),
            "layers": pathways.layers,
            "before": numbers(pathways.clean_NWLE[n]),
            "after": numbers(pathways.probs_NWLE()[n]),
            "core": pathways.core[n].tolist(),
            "neighbours": _neighbour_lines(optimized, n, references),
            "losses": numbers(optimized.losses[:, n]),
            "continuations": continuations,
            "scores": scores_of_states,
        }
        lines.append(json_line(line))
    with writing(file), file.open("a", encoding="utf-8") as stream:
        stream.writelines(lines)


def _neighbour_lines(
    optimized: Optimized, question: int, references: ReferenceSet | None
) -> list[dict[str, Any]]:
    """The neighbours of a question, nearest first; none for the oracle."""
    near = optimized.near
    if references is None or near is None or optimized.weight_NK is None:
        return []
    weight_K = optimized.weight_NK[question]
    share_K = weight_K / weight_K.sum()
    lines = []
    for k, reference in enumerate(near.index_QK[question].tolist()):
        if reference < 0:
            continue
        pathway_WLE = references.pathway_RWME[reference][:, optimized.pathways.layers]
        lines.append(
            {
                "reference": reference,
                "text": references.texts[reference],
                "distance": numbers(near.distance_QK[question, k]),
                "weight": numbers(share_K[k]),
                "pathway": numbers(pathway_WLE),
            }
        )
    return lines


def numbers(tensor: Tensor) -> Any:
    """A number, or nested lists of them; NaN as None."""
    return _rounded(tensor.detach().cpu().double().tolist())


def _rounded(value: Any) -> Any:
    """A number with `DIGITS` significant digits, None for NaN; lists number by number."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if math.isnan(value):
        return None
    return float(f"{value:.{DIGITS}g}")
