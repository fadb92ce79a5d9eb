"""Expert metrics of a run minus those of another one on the same documents, with 95% intervals over
documents.

G = groups of documents that the jackknife leaves out in turn, R = evaluations under a policy, N =
documents.
"""

from typing import Any

import numpy as np

from moe_lab.metrics.entropies import LEFT_OUT
from moe_lab.metrics.intervals import jackknife
from moe_lab.results.measured import Difference
from moe_lab.results.statistics import interval_of_difference


def differences(
    run: dict[str, np.ndarray], baseline: dict[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """A `Difference` as JSON by the metric's path: that of `run` minus that of `baseline`.

    Both have the arrays of expert_metrics.json of the same documents, by path (`stored.Arrays`).
    Load Balance and Collaboration use the jackknife of the difference. Capacity and Specialization
    are differences of accuracies already, and use `statistics.interval_of_difference`. Arrays that
    the baseline lacks, or has in another shape, are left out.
    """
    by_path = {}
    for path, array in run.items():
        of_baseline = baseline.get(path)
        if of_baseline is None or of_baseline.shape != array.shape:
            continue
        metric, _, name = path.rpartition("/")
        if name == LEFT_OUT:
            difference = _difference_of_entropies(array, of_baseline)
        else:
            difference = _difference_of_losses(array, of_baseline)
        by_path[metric] = difference.to_json()
    return by_path


def _difference_of_entropies(run: np.ndarray, baseline: np.ndarray) -> Difference:
    """The difference of two [1 + G] arrays, without the groups that have no tokens in either
    run."""
    has_tokens = ~(np.isnan(run) & np.isnan(baseline))
    # without a group that has no tokens, the value is that of all groups
    run = np.where(np.isnan(run), run[0], run)[has_tokens]
    baseline = np.where(np.isnan(baseline), baseline[0], baseline)[has_tokens]
    difference, interval = jackknife(float(run[0] - baseline[0]), run[1:] - baseline[1:])
    return Difference(difference=difference, interval=interval)


def _difference_of_losses(run: np.ndarray, baseline: np.ndarray) -> Difference:
    """The difference of the losses of two runs, from scores [1 + R, N]: the base model's, then each
    evaluation's.

    A loss is the base score minus the mean score of R evaluations. The difference of two losses,
    (base - changed) - (base' - changed'), is (base + changed') - (base' + changed): twice the
    difference of two means over 2 R evaluations, in which each base score counts R times. So one
    paired interval serves for both losses.
    """
    R = len(run) - 1
    added = [run[0]] * R + [*baseline[1:]]
    subtracted = [baseline[0]] * R + [*run[1:]]
    difference = 2 * float(np.mean(added) - np.mean(subtracted))
    interval = interval_of_difference(added, subtracted)
    if interval is not None:
        low, high = interval
        interval = 2 * low, 2 * high
    return Difference(difference=difference, interval=interval)
