"""The table of an experiment as Markdown and CSV: measured and published values side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from moe_lab.reports.papers.cells import (
    NOTE,
    Place,
    TableCell,
    averages,
    compared_names,
    corrected_scores,
    place_of,
    published_of,
    shown_cells,
)
from moe_lab.reports.papers.experiment import MEASURE, Experiment, Published
from moe_lab.reports.papers.files import cells_csv, file_stem, table_lines, title, typed_lines
from moe_lab.reports.papers.ranking import chance_of, ranking_lines, seed_bounds_text
from moe_lab.reports.papers.stated import Stated, stated_lines, stated_numbers
from moe_lab.results.atomic import write_file
from moe_lab.results.measured import bounds_text
from moe_lab.results.score_table import Family, explained_marks
from moe_lab.results.scores import BASE, Score
from moe_lab.results.significance import ALPHA

NOT_COMPARABLE = {
    "tiny": "Scale tiny: the embedded model and the toy tasks replace the paper's; no number is comparable.",
    "small": "Scale small: part of the documents.",
}


SEEDS = (
    "A mean over seeds has its standard deviation after ± and two intervals: the first is over documents (other "
    "questions, the same runs), `seeds [...]` is Student's interval over seeds (other runs, the same questions). From "
    "five seeds on a difference has a third, `both [...]`, over seeds and documents together, to which its p belongs."
)

OVER_SEEDS = (
    "For means over five seeds or more, p is from one test over seeds and documents, which adds their variances. With "
    "fewer seeds it is the larger p of two tests: Student's paired test over seeds, and the permutation test over "
    "documents. Expert metrics are tested over seeds only, and have no p if all seeds have the same difference."
)


def write_table(
    experiment: Experiment, scale: str, cells: Sequence[TableCell], folder: Path, family: Family
) -> Path:
    """Write `<stem>.md` and `.csv` (`file_stem`) and return the path of the first."""
    stem = file_stem(experiment, scale)
    write_file(folder / f"{stem}.csv", cells_csv(experiment, cells, family))
    text = markdown(experiment, scale, cells, family, stated_numbers(experiment, scale, folder))
    return write_file(folder / f"{stem}.md", text)


def markdown(
    experiment: Experiment,
    scale: str,
    cells: Sequence[TableCell],
    family: Family,
    stated: Sequence[Stated] = (),
) -> str:
    """The Markdown file. `stated` are the numbers in the paper's text about the figure."""
    lines = [f"# {title(experiment, scale)}", "", experiment.source, "", *typed_lines(experiment)]
    if scale in NOT_COMPARABLE:
        lines += [NOT_COMPARABLE[scale], ""]
    measured = [score for cell in cells if (score := cell.score())]
    lines += [
        f"{len(measured)} of {len(cells)} cells are measured. Rates are fractions, with standard errors "
        "(in brackets) and 95% intervals over documents."
        + (f" {SEEDS}" if any(score.seeds > 1 for score in measured) else ""),
        "",
    ]
    lines += [NOTE, ""] if averages(experiment, cells) else []
    shown = shown_cells(experiment, cells)
    corrected = corrected_scores(shown, family)
    lines += correction_note(corrected.values())
    lines += _grid(experiment, shown, corrected)
    lines += [
        "",
        *ranking_lines(experiment, cells, family),
        *_shown(experiment, cells),
        *stated_lines(stated),
        *_published_list(experiment, [each.published for each in stated]),
        *_marks(measured),
    ]
    lines += [*_problems(cells), *_runs(cells)]
    return "\n".join(lines).rstrip() + "\n"


def _grid(experiment: Experiment, cells: Sequence[TableCell], corrected: Mapping[Place, Score]) -> list[str]:
    across = [key for key in experiment.keys if key not in experiment.rows]
    named = [key for key in experiment.rows if any(cell.coordinates[key] != "-" for cell in cells)]
    by_place = {(_key(cell, named), _key(cell, across)): cell for cell in cells}
    rows = list(dict.fromkeys(row for row, _ in by_place))
    columns = list(dict.fromkeys(column for _, column in by_place))
    others = compared_names(cells)
    header = [*named, "documents", "seeds", "without a neighbour"]
    for column in columns:
        name = _column_name(across, column)
        header += [name, f"{name}, published", f"{name} - base"]
        header += [f"{name} - {other.replace('_', ' ')}" for other in others]
    body = []
    for row in rows:
        line = [*row, *_counts([by_place.get((row, column)) for column in columns])]
        for column in columns:
            line += _texts(experiment, by_place.get((row, column)), others, corrected)
        body.append(line)
    printed = any(published_of(experiment, cell) for cell in cells)
    without = {_key(cell, across) for cell in cells if cell.of_training or not printed}
    unknown = {f"{_column_name(across, column)}, published" for column in without}
    columns_left = [index for index, name in enumerate(header) if name not in unknown]
    header, body = _only(columns_left, header, body)
    columns_left = [index for index in range(len(header)) if any(line[index] for line in body)]
    header, body = _only(columns_left, header, body)  # base has no difference to itself
    return table_lines(header, body)


def _shown(experiment: Experiment, cells: Sequence[TableCell]) -> list[str]:
    """The metric of each column. If a column has several metrics, each is listed with its tasks."""
    across = [key for key in experiment.keys if key not in experiment.rows]
    found: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        score = cell.score()
        if score is not None and (metric := cell.shows()):
            column = found.setdefault(_column_name(across, _key(cell, across)), {})
            column.setdefault(metric + _chance(experiment, cell), []).append(score.task)
    return ["Metrics:", "", *(_shown_line(*each) for each in found.items()), ""] if found else []


def _shown_line(column: str, metrics: Mapping[str, Sequence[str]]) -> str:
    if len(metrics) == 1:
        return f"- {column}: {next(iter(metrics))}"
    each = (f"{metric} ({', '.join(dict.fromkeys(tasks))})" for metric, tasks in metrics.items())
    return f"- {column}: {'; '.join(each)}"


def _chance(experiment: Experiment, cell: TableCell) -> str:
    chance = chance_of(experiment, [cell]) if cell.metric == "headline" else None
    return "" if chance is None else f", {chance:g} by chance"


def _column_name(keys: Sequence[str], column: tuple[str, ...]) -> str:
    """Options by their name, dotted keys as `n=8`; a dash is left out."""
    parts = [
        f"{key.rpartition('.')[2]}={value}" if "." in key else value
        for key, value in zip(keys, column, strict=True)
        if value != "-"
    ]
    return " ".join(parts)


def _only(columns: list[int], header: list[str], body: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    return [header[index] for index in columns], [[line[index] for index in columns] for line in body]


def _texts(
    experiment: Experiment, cell: TableCell | None, others: Sequence[str], corrected: Mapping[Place, Score]
) -> list[str]:
    """The texts of a cell's columns: measured, published, difference to base and to each other run."""
    if cell is None:
        return [""] * (3 + len(others))
    score, published = cell.score(), published_of(experiment, cell)
    shown = (
        ""
        if published is None
        else f"{published.fraction:.4g}{f' {published.mark}' if published.mark else ''}"
    )
    if score is None:
        return ["failed" if cell.problem else "missing", shown or "-", *[""] * (1 + len(others))]
    value = " ".join([_value(score), *score.marks])
    differences = [difference_text(corrected.get(place_of(cell, other))) for other in (BASE, *others)]
    return [value, shown or "-", *differences]


def _value(score: Score) -> str:
    if score.value is None:
        return "-"
    error = "" if score.stderr is None else f" ({score.stderr:.4f})"
    spread = "" if score.std is None else f" ± {score.std:.4f}"
    return f"{score.value:.4f}{error}{spread}{bounds_text(score.interval)}{seed_bounds_text(score.seed_interval)}"


def correction_note(scores: Iterable[Score]) -> list[str]:
    """A paragraph about p and bold differences; empty for a table without a p."""
    scores = [score for score in scores if score.p_holm is not None]
    if not scores:
        return []
    permuted = any(score.p_randomization is not None for score in scores)
    other = ", or from the paired permutation test for scores other than 0 and 1" if permuted else ""
    sentences = [f"p is from McNemar's test{other}."]
    if any(score.p_seeds is not None for score in scores):
        sentences.append(OVER_SEEDS)
    if any(score.p_average is not None for score in scores):
        sentences.append("For an average over tasks, p belongs to its interval.")
    counts = {score.question: score.family or 1 for score in scores}
    named = ", ".join(f"{question}: {count}" for question, count in counts.items())
    several = max(counts.values()) > 1
    p = f"p, corrected by Holm for the comparisons of the same question ({named})," if several else "p"
    sentences.append(f"Bold differences are statistically significant: {p} is below {ALPHA}.")
    sentences.append("Intervals are those of one comparison, not corrected for their number.")
    return [" ".join(sentences), ""]


def difference_text(score: Score | None) -> str:
    """The difference with its interval and p as Markdown, bold where it is significant; empty without one."""
    if score is None or score.difference is None:
        return ""
    text = f"{score.difference:+.4f}{bounds_text(score.difference_interval, '+')}"
    text += seed_bounds_text(score.difference_seed_interval, "+")
    if score.difference_both_interval is not None:
        text += f", both{bounds_text(score.difference_both_interval, '+')}"
    if score.equal:
        return f"{text} (equal within rounding)"
    if score.p is None or score.p_holm is None:
        return text
    shown = f"**{text}**" if score.significant else text
    holm = f", Holm {score.p_holm:.3g}" if (score.family or 1) > 1 else ""
    return f"{shown} (p={score.p:.3g}{holm})"


def _counts(cells: Sequence[TableCell | None]) -> list[str]:
    """The columns `documents`, `seeds` and `without a neighbour` of a line; of its averages if it has no other cells.

    `seeds` is empty if every cell is one run, `without a neighbour` if every question has its k nearest neighbours.
    """
    present = [cell for cell in cells if cell is not None]
    single = [cell for cell in present if not cell.parts]
    scores = [score for cell in single or present if (score := cell.score())]
    documents = dict.fromkeys(str(score.n) for score in scores if score.n is not None)
    seeds = dict.fromkeys(str(score.seeds) for score in scores)
    alone = [counts for cell in single or present if (counts := cell.without_neighbour()) is not None]
    none, questions = (sum(numbers) for numbers in zip(*alone, strict=True)) if alone else (0, 0)
    return [
        "/".join(documents) or "-",
        "/".join(seeds) if any(score.seeds > 1 for score in scores) else "",
        f"{none} of {questions}" if alone else "",
    ]


def _published_list(experiment: Experiment, stated: Sequence[Published]) -> list[str]:
    """The published numbers, without those that `stated_lines` shows."""
    lines = []
    listed = [each for each in experiment.paper if each not in stated]
    for (place, unit, mark, where), group in groupby(listed, lambda each: _origin(experiment, each)):
        numbers = ", ".join(" ".join([*_columns(experiment, each), f"{each.value:g}"]) for each in group)
        lines.append(f"- {', '.join(where)}: {numbers} {unit} ({place})" + (f" {mark}" if mark else ""))
    return ["Published numbers and their places:", "", *lines, ""] if lines else []


def _columns(experiment: Experiment, each: Published) -> list[str]:
    """The coordinates by which a number differs from the others of its line in the paper's table."""
    return [each.cell[key] for key in (experiment.average, MEASURE) if key in each.cell]


def _origin(experiment: Experiment, each: Published) -> tuple[str, str, str | None, tuple[str, ...]]:
    """Place, unit, mark and coordinates that the numbers of one line of the paper's table share."""
    own = (experiment.average, MEASURE)
    where = tuple(value for key, value in each.cell.items() if key not in own and value != "-")
    return each.place, each.unit, each.mark, where


def _marks(scores: Sequence[Score]) -> list[str]:
    lines = [f"- {text}" for text in explained_marks(mark for score in scores for mark in score.marks)]
    return [*lines, ""] if lines else []


def _problems(cells: Sequence[TableCell]) -> list[str]:
    lines = [f"- {cell.name}: {cell.problem}" for cell in cells if cell.problem]
    return ["Failed cells:", "", *lines, ""] if lines else []


def _runs(cells: Sequence[TableCell]) -> list[str]:
    lines = []
    for cell in cells:
        ids = " ".join(result.run_id for result in cell.results)
        names = ", ".join(folder.name for folder in cell.studies)
        tuned = f" (tuned by {names})" if names else ""
        if ids or tuned:
            name = ", ".join(value for key, value in cell.coordinates.items() if key != MEASURE)
            lines.append(f"- {name}: {ids}{tuned}")
    return ["Runs:", "", *dict.fromkeys(lines)] if lines else []


def _key(cell: TableCell, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.coordinates[name] for name in names)
