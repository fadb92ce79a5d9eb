"""Table 7 of the C3PO paper: benchmarks and reference sets with their sizes here and in the paper."""

from __future__ import annotations

from collections.abc import Sequence

from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment
from moe_lab.results.scores import scores_of


def reference_rows(experiment: Experiment, cells: Sequence[TableCell]) -> list[dict[str, object]]:
    """One row per benchmark and reference set: evaluated documents, and available, asked and kept references.

    None for numbers that do not exist: unpublished ones, and the counts of a run whose answers were all stored.
    """
    published = {
        (quantity, name): int(each.value) for each in experiment.paper for quantity, name in each.cell.items()
    }
    return [
        {
            "model": cell.results[0].model,
            "task": cell.coordinates["task"],
            "documents": scores_of(cell.results[0])[0].n,
            "published_documents": published.get(("documents", cell.coordinates["task"])),
            "reference": source["title"],
            "available": source["documents"],
            "test_documents": source["dropped"],
            "asked": source["asked"],
            "published_asked": published.get(("references", source["title"])),
            "kept": source.get("correct"),
            "data": ", ".join(source.get("data", [])),
        }
        for cell in cells
        if cell.results
        for source in ((cell.results[0].report.get("reference") or {}).get("set") or {}).get("sources", [])
    ]
