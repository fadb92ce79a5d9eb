"""Values and differences of expert metrics with 95% intervals over documents.

G = groups of documents that the jackknife leaves out in turn, L = MoE layers, E = experts, R = evaluations under a
policy, N = documents.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from moe_lab.metrics.registry import counted_metrics
from moe_lab.results.measured import Ci95, Difference, Measured, Paired, Value
from moe_lab.results.samples import Log, Values, logged_values
from moe_lab.results.significance import paired
from moe_lab.results.statistics import LEVEL, Aggregate, interval_of_difference
from moe_lab.results.stored import Interval
from moe_lab.results.task_scores import aggregation

LEFT_OUT = "left_out"
NUMBERS_AT_ONCE = 2**24
SCORES = "scores"


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
        return self.runs[0].p_mcnemar if len(self.runs) == 1 else None


def ratio(of_N: np.ndarray, over_N: np.ndarray) -> Value:
    """The sum over N documents, divided by the sum of `over_N` (a number of tokens, for example).

    The interval is that of a ratio over sampled documents (Cochran, 1977, 6.4): Student's with the standard error of
    the documents' residuals. The value is None without tokens; the interval is None for a single document.
    """
    total, N = float(over_N.sum()), len(over_N)
    if not total:
        return Value(value=None)
    value = float(of_N.sum() / total)
    if N < 2:
        return Value(value=value)
    from scipy.special import stdtrit

    error = float(np.std(of_N - value * over_N, ddof=1)) * N**0.5 / total
    half = float(stdtrit(N - 1, (1 + LEVEL) / 2)) * error
    return Value(value=value, interval=(value - half, value + half))


def entropies_of(pairs_GLEE: np.ndarray, experts: Sequence[int]) -> dict[str, Any]:
    """Every counted metric as `measured` returns it; the diagonal holds selections of single experts."""
    selections_GLE = np.diagonal(pairs_GLEE, axis1=-2, axis2=-1)
    return {
        name: mean_over_layers(
            pairs_GLEE if metric.of_pairs else selections_GLE,
            experts,
            metric.of_layers,
            [metric.maximum(count) for count in experts],
        )
        for name, metric in counted_metrics().items()
    }


def mean_over_layers(
    counts: np.ndarray,
    experts: Sequence[int],
    metric: Callable[[np.ndarray, Sequence[int]], np.ndarray],
    most: Sequence[float],
) -> dict[str, Any] | None:
    """The metric's mean over layers and each layer's value, with 95% intervals; None if nothing was counted.

    The entropy of counts ("counted") underestimates the entropy of the frequencies; the bias grows as fewer tokens are
    counted. "value" is corrected by the jackknife over groups of documents (Zahl, 1977). The interval is Student's with
    the jackknife's standard error. Both are clipped to the possible values. With a single group of tokens, "value" is
    "counted" and has no interval. LEFT_OUT is a numpy array [1 + G]: "counted", then the value without each group, NaN
    for a group without tokens.

    Args:
        counts: [G, L, E] or [G, L, E, E].
        most: the largest value of each layer.
    """
    has_tokens_G = np.asarray(counts.any(axis=tuple(range(1, counts.ndim))))
    counts = counts[has_tokens_G]
    if not len(counts):
        return None
    total, without_GL = counts.sum(axis=0, dtype=np.float64), None
    counted_L = metric(total, experts)
    if len(counts) > 1:
        at_once = max(1, NUMBERS_AT_ONCE // total.size)
        starts = range(0, len(counts), at_once)
        parts = [metric(total - counts[start : start + at_once], experts) for start in starts]
        without_GL = np.concatenate(parts)
    layers = [
        _clipped(float(value), without_GL[:, number] if without_GL is not None else None, limit)
        for number, (value, limit) in enumerate(zip(counted_L, most, strict=True))
    ]
    overall = without_GL.mean(axis=-1) if without_GL is not None else None
    left_out = np.full(1 + len(has_tokens_G), np.nan)
    left_out[0] = counted_L.mean()
    if overall is not None:
        left_out[1:][has_tokens_G] = overall
    found = _clipped(float(left_out[0]), overall, float(np.mean(most)))
    return found | {"layers": layers, LEFT_OUT: left_out}


def _clipped(counted: float, without_G: np.ndarray | None, most: float) -> dict[str, Any]:
    """An `Entropy` as JSON from the value of all groups and the values without each group."""
    if without_G is None:
        return Entropy(value=counted, counted=counted, maximum=most).to_json()
    value, (low, high) = (np.clip(found, 0.0, most) for found in jackknife(counted, without_G))
    entropy = Entropy(
        value=float(value), interval=(float(low), float(high)), counted=counted, maximum=most
    )
    return entropy.to_json()


def jackknife(counted: float, without_G: np.ndarray) -> tuple[float, Interval]:
    """The value corrected by the jackknife, and Student's 95% interval with the jackknife's standard error.

    Args:
        counted: the value of all groups.
        without_G: the value without each of at least two groups.
    """
    from scipy.special import stdtrit

    G = len(without_G)
    value = G * counted - (G - 1) * float(without_G.mean())
    error = float(np.sqrt((G - 1) * without_G.var()))
    half = float(stdtrit(G - 1, (1 + LEVEL) / 2)) * error
    return value, (value - half, value + half)


def differences(
    mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """A `Difference` as JSON by path: each metric minus that of another run on the same documents.

    Load Balance and Collaboration use the jackknife of the difference. Capacity and Specialization are differences of
    accuracies already, and use `statistics.interval_of_difference`. Arrays whose shapes differ are left out.
    """
    found = {}
    for path in (
        path for path in mine if path in theirs and mine[path].shape == theirs[path].shape
    ):
        of, _, name = path.rpartition("/")
        compared = _left_out if name == LEFT_OUT else _losses
        found[of] = compared(mine[path], theirs[path]).to_json()
    return found


def _left_out(mine: np.ndarray, theirs: np.ndarray) -> Difference:
    """The difference of two [1 + G] arrays, without the groups that have no tokens in either run."""
    has_tokens = ~(np.isnan(mine) & np.isnan(theirs))
    own, other = (np.where(np.isnan(one), one[0], one)[has_tokens] for one in (mine, theirs))
    difference, interval = jackknife(float(own[0] - other[0]), own[1:] - other[1:])
    return Difference(difference=difference, interval=interval)


def _losses(mine: np.ndarray, theirs: np.ndarray) -> Difference:
    """The difference of the losses of two [1 + R, N] arrays.

    (base - changed) - (base' - changed') is twice the mean of base and changed' minus the mean of base' and changed.
    """
    R = len(mine) - 1
    up, down = [mine[0]] * R + [*theirs[1:]], [theirs[0]] * R + [*mine[1:]]
    limits = interval_of_difference(up, down)
    difference = 2 * float(np.mean(up) - np.mean(down))
    interval = None if limits is None else (2 * limits[0], 2 * limits[1])
    return Difference(difference=difference, interval=interval)


def losses(tasks: dict[str, Any], before: Log, changed: Sequence[Log]) -> dict[str, Any]:
    """The accuracy lost in each task, by `metric,filter`; for several tasks also "all", the loss over all documents.

    Args:
        before: samples under the unchanged routing.
        changed: samples of one or more evaluations under a policy; the loss is the difference to their mean.

    Returns a `Loss` as JSON for each metric. For means, SCORES is a numpy array [1 + evaluations, n]: each document's
    score in base and in every evaluation.
    """
    base = {name: logged_values(before[name]) for name in tasks}
    others = [{name: logged_values(samples[name]) for name in tasks} for samples in changed]
    by_task: dict[str, Any] = {
        name: {
            metric: _loss(
                by_document, [other[name][metric] for other in others], aggregation(task, metric)
            )
            for metric, by_document in base[name].items()
        }
        for name, task in tasks.items()
    }
    # the documents of all tasks as one sample, for the metrics that are means in every task
    if len(tasks) > 1:
        shared = set.intersection(*(set(values) for values in base.values()))
        means = [
            m
            for m in sorted(shared)
            if all(aggregation(task, m) is None for task in tasks.values())
        ]
        by_task["all"] = {
            metric: _loss(_joined(base, metric), [_joined(other, metric) for other in others], None)
            for metric in means
        }
    return by_task


def _joined(values: dict[str, Values], metric: str) -> dict[Any, Any]:
    return {
        (name, d): value for name, metrics in values.items() for d, value in metrics[metric].items()
    }


def _loss(
    base: dict[Any, Any], others: Sequence[dict[Any, Any]], aggregate: Aggregate | None
) -> dict[str, Any]:
    documents = list(base)
    mine = [base[d] for d in documents]
    runs = [[other[d] for d in documents] for other in others]
    score = aggregate or (lambda values: float(np.mean(values)))
    before, after = float(score(mine)), [float(score(run)) for run in runs]
    limits = interval_of_difference(runs, [mine], aggregate)
    loss = Loss(
        n=len(documents),
        base=before,
        changed=float(np.mean(after)),
        difference=float(
            np.mean([before - one for one in after])
        ),  # exactly 0 where nothing changed
        interval=(0.0 - limits[1], 0.0 - limits[0]) if limits else None,  # no -0.0
        runs=[paired(mine, run, aggregate) for run in runs],
    )
    scores = {SCORES: np.asarray([mine, *runs], dtype=float)} if aggregate is None else {}
    return loss.to_json() | scores
