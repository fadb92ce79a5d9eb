"""Values and differences of expert metrics with 95% intervals over documents.

G = groups of documents that the jackknife leaves out in turn, L = MoE layers, E = experts, R = evaluations under a
policy, N = documents.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from moe_lab.metrics.registry import counted_metrics
from moe_lab.results.measured import Ci95, Difference, Measured, Paired, Value
from moe_lab.results.paired import paired
from moe_lab.results.samples import Log, Values, logged_values
from moe_lab.results.statistics import LEVEL, Aggregate, interval_of_difference
from moe_lab.results.stored import Interval
from moe_lab.results.task_scores import aggregation

LEFT_OUT = "left_out"
"""The key of a counted metric's array: its value, and its value without each group."""
NUMBERS_AT_ONCE = 2**24
"""The most counts of which the entropies are computed together."""
SCORES = "scores"
"""The key of the array with each document's scores."""
OVER_ALL_TASKS = "all"


class Entropy(Value):
    """An entropy in bits: of a layer, or the mean over layers."""

    counted: float | None = None
    """Before the correction."""
    maximum: float | None = None


class Loss(Measured):
    """The accuracy that a policy costs in a task: `base` minus `changed`."""

    n: int | None = None
    base: float | None = None
    changed: float | None = None
    """The mean over evaluations."""
    difference: float | None
    interval: Ci95 = None
    """Over documents."""
    runs: list[Paired] = Field([])
    """Of each evaluation: `to_right` counts the documents that only base answers correctly."""

    @property
    def p(self) -> float | None:
        """McNemar's p of a single evaluation; None for several."""
        if len(self.runs) != 1:
            return None
        return self.runs[0].p_mcnemar


def ratio(of_N: np.ndarray, over_N: np.ndarray) -> Value:
    """The sum over N documents, divided by the sum of `over_N` (a number of tokens, for example).

    The interval is that of a ratio over sampled documents (Cochran, 1977, 6.4): Student's with the standard error of
    the documents' residuals. The value is None without tokens; the interval is None for a single document.
    """
    total = float(over_N.sum())
    if not total:
        return Value(value=None)
    value = float(of_N.sum() / total)
    N = len(over_N)
    if N < 2:
        return Value(value=value)
    residual_N = of_N - value * over_N
    error = float(np.std(residual_N, ddof=1)) * N**0.5 / total
    interval = student_interval(value, error, degrees_of_freedom=N - 1)
    return Value(value=value, interval=interval)


def student_interval(value: float, error: float, degrees_of_freedom: int) -> Interval:
    """Student's 95% interval around a value with this standard error."""
    from scipy.special import stdtrit

    half = float(stdtrit(degrees_of_freedom, (1 + LEVEL) / 2)) * error
    return value - half, value + half


# Counted metrics: Load Balance and Collaboration


def entropies_of(pairs_GLEE: np.ndarray, experts: Sequence[int]) -> dict[str, Any]:
    """Every counted metric as `mean_over_layers` returns it.

    Args:
        pairs_GLEE: how often two experts are selected together; the diagonal holds selections of single experts.
    """
    selections_GLE = np.diagonal(pairs_GLEE, axis1=-2, axis2=-1)
    entropies = {}
    for name, metric in counted_metrics().items():
        counts = pairs_GLEE if metric.of_pairs else selections_GLE
        maxima = [metric.maximum(count) for count in experts]
        entropies[name] = mean_over_layers(counts, experts, metric.of_layers, maxima)
    return entropies


def mean_over_layers(
    counts: np.ndarray,
    experts: Sequence[int],
    metric: Callable[[np.ndarray, Sequence[int]], np.ndarray],
    maxima: Sequence[float],
) -> dict[str, Any] | None:
    """The metric's mean over layers and each layer's value, with 95% intervals; None if nothing was counted.

    The entropy of counts ("counted") underestimates the entropy of the frequencies; the bias grows as fewer tokens are
    counted. "value" is corrected by the jackknife over groups of documents (Zahl, 1977). The interval is Student's with
    the jackknife's standard error. Both are clipped to the possible values. With a single group of tokens, "value" is
    "counted" and has no interval. LEFT_OUT is a numpy array [1 + G]: "counted", then the value without each group, NaN
    for a group without tokens.

    Args:
        counts: [G, L, E] or [G, L, E, E].
        experts: the number of experts of each layer.
        metric: (counts [..., L, E] or [..., L, E, E], `experts`) -> the value of each layer, [..., L].
        maxima: the largest possible value of each layer.
    """
    has_tokens_G = np.asarray(counts.any(axis=tuple(range(1, counts.ndim))))
    counts = counts[has_tokens_G]
    if not len(counts):
        return None
    total = counts.sum(axis=0, dtype=np.float64)
    counted_L = metric(total, experts)
    without_GL = _without_each_group(counts, total, experts, metric)

    layers = []
    for layer, (counted, maximum) in enumerate(zip(counted_L, maxima, strict=True)):
        without_G = None
        if without_GL is not None:
            without_G = without_GL[:, layer]
        layers.append(_corrected(float(counted), without_G, maximum).to_json())

    mean_without_G = None
    left_out = np.full(1 + len(has_tokens_G), np.nan)
    left_out[0] = counted_L.mean()
    if without_GL is not None:
        mean_without_G = without_GL.mean(axis=-1)
        left_out[1:][has_tokens_G] = mean_without_G
    mean = _corrected(float(left_out[0]), mean_without_G, float(np.mean(maxima)))
    return mean.to_json() | {"layers": layers, LEFT_OUT: left_out}


def _without_each_group(
    counts: np.ndarray,
    total: np.ndarray,
    experts: Sequence[int],
    metric: Callable[[np.ndarray, Sequence[int]], np.ndarray],
) -> np.ndarray | None:
    """[G, L]: each layer's value without each group; None for a single group."""
    if len(counts) == 1:
        return None
    groups_at_once = max(1, NUMBERS_AT_ONCE // total.size)
    parts = []
    for start in range(0, len(counts), groups_at_once):
        left_out = counts[start : start + groups_at_once]
        parts.append(metric(total - left_out, experts))
    return np.concatenate(parts)


def _corrected(counted: float, without_G: np.ndarray | None, maximum: float) -> Entropy:
    """The entropy from the value of all groups and the values without each group."""
    if without_G is None:
        return Entropy(value=counted, counted=counted, maximum=maximum)
    value, (low, high) = jackknife(counted, without_G)
    return Entropy(
        value=_clipped(value, maximum),
        interval=(_clipped(low, maximum), _clipped(high, maximum)),
        counted=counted,
        maximum=maximum,
    )


def _clipped(value: float, maximum: float) -> float:
    return float(np.clip(value, 0.0, maximum))


def jackknife(counted: float, without_G: np.ndarray) -> tuple[float, Interval]:
    """The value corrected by the jackknife, and Student's 95% interval with the jackknife's standard error.

    Args:
        counted: the value of all groups.
        without_G: the value without each of at least two groups.
    """
    G = len(without_G)
    value = G * counted - (G - 1) * float(without_G.mean())
    error = float(np.sqrt((G - 1) * without_G.var()))
    return value, student_interval(value, error, degrees_of_freedom=G - 1)


# Differences to another run


def differences(
    mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """A `Difference` as JSON by path: each metric minus that of another run on the same documents.

    Load Balance and Collaboration use the jackknife of the difference. Capacity and Specialization are differences of
    accuracies already, and use `statistics.interval_of_difference`. Arrays whose shapes differ are left out.
    """
    found = {}
    for path, array in mine.items():
        other = theirs.get(path)
        if other is None or other.shape != array.shape:
            continue
        metric, _, name = path.rpartition("/")
        if name == LEFT_OUT:
            difference = _difference_of_entropies(array, other)
        else:
            difference = _difference_of_losses(array, other)
        found[metric] = difference.to_json()
    return found


def _difference_of_entropies(mine: np.ndarray, theirs: np.ndarray) -> Difference:
    """The difference of two [1 + G] arrays, without the groups that have no tokens in either run."""
    has_tokens = ~(np.isnan(mine) & np.isnan(theirs))
    # without a group that has no tokens, the value is that of all groups
    mine = np.where(np.isnan(mine), mine[0], mine)[has_tokens]
    theirs = np.where(np.isnan(theirs), theirs[0], theirs)[has_tokens]
    difference, interval = jackknife(float(mine[0] - theirs[0]), mine[1:] - theirs[1:])
    return Difference(difference=difference, interval=interval)


def _difference_of_losses(mine: np.ndarray, theirs: np.ndarray) -> Difference:
    """The difference of the losses of two runs, from scores [1 + R, N]: the base model's, then each evaluation's.

    A loss is the base score minus the mean score of R evaluations. The difference of two losses,
    (base - changed) - (base' - changed'), is (base + changed') - (base' + changed): twice the difference of two means
    over 2 R evaluations, in which each base score counts R times. So one paired interval serves for both losses.
    """
    R = len(mine) - 1
    added = [mine[0]] * R + [*theirs[1:]]
    subtracted = [theirs[0]] * R + [*mine[1:]]
    difference = 2 * float(np.mean(added) - np.mean(subtracted))
    interval = interval_of_difference(added, subtracted)
    if interval is not None:
        low, high = interval
        interval = 2 * low, 2 * high
    return Difference(difference=difference, interval=interval)


# Interventions: the accuracy that a policy costs


def losses(tasks: dict[str, Any], before: Log, changed: Sequence[Log]) -> dict[str, Any]:
    """The accuracy lost in each task, by `metric,filter`; for several tasks also "all", the loss over all documents.

    Args:
        before: samples under the unchanged routing.
        changed: samples of one or more evaluations under a policy; the loss is the difference to their mean.

    Returns a `Loss` as JSON for each metric. For means, SCORES is a numpy array [1 + evaluations, n]: each document's
    score in base and in every evaluation.
    """
    base = _values_by_task(tasks, before)
    evaluations = [_values_by_task(tasks, samples) for samples in changed]
    by_task: dict[str, Any] = {}
    for name, task in tasks.items():
        by_task[name] = {}
        for metric, by_document in base[name].items():
            under_policy = [values[name][metric] for values in evaluations]
            by_task[name][metric] = _loss(by_document, under_policy, aggregation(task, metric))
    if len(tasks) > 1:
        by_task[OVER_ALL_TASKS] = {}
        for metric in _means_of_all(tasks, base):
            under_policy = [_joined(values, metric) for values in evaluations]
            by_task[OVER_ALL_TASKS][metric] = _loss(_joined(base, metric), under_policy, None)
    return by_task


ByTask = dict[str, Values]
"""The values of each document by task and `metric,filter`."""


def _values_by_task(tasks: Iterable[str], samples: Log) -> ByTask:
    return {name: logged_values(samples[name]) for name in tasks}


def _means_of_all(tasks: dict[str, Any], values: ByTask) -> list[str]:
    """The metrics that every task has and whose score is the mean over documents in every task, sorted."""
    in_every_task = set.intersection(*(set(metrics) for metrics in values.values()))
    means = []
    for metric in sorted(in_every_task):
        aggregations = [aggregation(task, metric) for task in tasks.values()]
        if all(aggregate is None for aggregate in aggregations):  # None: the mean
            means.append(metric)
    return means


def _joined(values: ByTask, metric: str) -> dict[Any, Any]:
    """The documents of all tasks as one sample."""
    joined = {}
    for task, metrics in values.items():
        for document, value in metrics[metric].items():
            joined[task, document] = value
    return joined


def _loss(
    base: dict[Any, Any], evaluations: Sequence[dict[Any, Any]], aggregate: Aggregate | None
) -> dict[str, Any]:
    """The `Loss` of a metric as JSON, from its values by document."""
    score = aggregate or (lambda values: float(np.mean(values)))
    base_values = [base[document] for document in base]
    base_score = float(score(base_values))
    changed_values = []
    changed_scores = []
    for by_document in evaluations:
        values = [by_document[document] for document in base]
        changed_values.append(values)
        changed_scores.append(float(score(values)))

    interval = interval_of_difference(changed_values, [base_values], aggregate)
    if interval is not None:
        low, high = interval
        interval = 0.0 - high, 0.0 - low  # no -0.0
    loss = Loss(
        n=len(base),
        base=base_score,
        changed=float(np.mean(changed_scores)),
        # exactly 0 where nothing changed
        difference=float(np.mean([base_score - changed for changed in changed_scores])),
        interval=interval,
        runs=[paired(base_values, values, aggregate) for values in changed_values],
    ).to_json()
    if aggregate is None:
        loss[SCORES] = np.asarray([base_values, *changed_values], dtype=float)
    return loss
