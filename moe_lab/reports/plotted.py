"""The lines of a score table that a forest plot shows: their labels, order and panels."""

from collections import Counter
from collections.abc import Iterable, Sequence

from moe_lab.reports.score_line import ScoreLine
from moe_lab.results.model import BASE


def plotted(lines: Sequence[ScoreLine]) -> list[ScoreLine]:
    """The lines whose difference has an interval, with the labels of a plot.

    A label names the model if there are several, the method, its settings, and the other run unless
    it is base. A setting that a study found is named by the study only where two lines would have
    the same label otherwise.
    """
    several_models = len({line.score.model for line in lines}) > 1
    tested = [line for line in lines if line.score.tested_interval is not None]
    short_labels = []
    for line in tested:
        short_labels.append(_plot_label(line, several_models, _settings_without_studies(line)))

    places = []
    for line, label in zip(tested, short_labels, strict=True):
        places.append((line.score.task, line.score.metric, label))
    uses = Counter(places)

    labelled = []
    for line, label, place in zip(tested, short_labels, places, strict=True):
        if uses[place] > 1:
            label = _plot_label(line, several_models, line.label)
        labelled.append(ScoreLine(line.score, label))
    return labelled


def _settings_without_studies(line: ScoreLine) -> str:
    """The settings of a line without those that are the name of the study of its runs."""
    studies = {result.tuning.get("study") for result in line.results}
    kept = [setting for setting in line.label.split(" ") if _value_of(setting) not in studies]
    return " ".join(kept)


def _value_of(setting: str) -> str:
    """The `v` of `key=v`."""
    return setting.partition("=")[2]


def _plot_label(line: ScoreLine, several_models: bool, settings: str) -> str:
    """`<model>, <method>, <settings>, minus <other run>`, without the parts that do not apply."""
    score = line.score
    parts = [score.method, settings.replace("method.", "")]
    if several_models:
        parts.insert(0, score.model)
    label = ", ".join(part for part in parts if part)
    if score.other == BASE:
        return label
    return f"{label}, minus {score.other.replace('_', ' ')}"


def difference_panels(lines: Iterable[ScoreLine]) -> list[list[ScoreLine]]:
    """The lines that have an interval, by task and metric, the largest difference first."""
    tested = [line for line in lines if line.score.tested_interval is not None]
    tested.sort(key=_largest_first)
    panels: dict[tuple[str, str], list[ScoreLine]] = {}
    for line in tested:
        panels.setdefault((line.score.task, line.score.metric), []).append(line)
    return list(panels.values())


def _largest_first(line: ScoreLine) -> float:
    """A key that orders by the size of the difference."""
    return -abs(line.score.difference or 0.0)


def panel_title(lines: Sequence[ScoreLine]) -> str:
    """The task of a panel and its number of examples."""
    task = lines[0].score.task
    counts = "/".join(dict.fromkeys(f"{line.score.n:,}" for line in lines if line.score.n))
    if not counts:
        return task
    return f"{task}, {counts} examples"
