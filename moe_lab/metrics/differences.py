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
    mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """A `Difference` as JSON by path: each metric minus that of another run on the same documents.

    Load Balance and Collaboration use the jackknife of the difference. Capacity and Specialization
    are differences of accuracies already, and use `statistics.interval_of_difference`. Arrays whose
    shapes differ are left out.
    """
    by_path = {}
    for path, array in mine.items():
        other = theirs.get(path)
        if other is None or other.shape != array.shape:
            continue
        metric, _, name = path.rpartition("/")
        if name == LEFT_OUT:
            difference = _difference_of_entropies(array, other)
        else:
            difference = _difference_of_losses(array, other)
        by_path[metric] = difference.to_json()
    return by_path


def _difference_of_entropies(mine: np.ndarray, theirs: np.ndarray) -> Difference:
    """The difference of two [1 + G] arrays, without the groups that have no tokens in either
    run."""
    has_tokens = ~(np.isnan(mine) & np.isnan(theirs))
    # without a group that has no tokens, the value is that of all groups
    mine = np.where(np.isnan(mine), mine[0], mine)[has_tokens]
    theirs = np.where(np.isnan(theirs), theirs[0], theirs)[has_tokens]
    difference, interval = jackknife(float(mine[0] - theirs[0]), mine[1:] - theirs[1:])
    return Difference(difference=difference, interval=interval)


def _difference_of_losses(mine: np.ndarray, theirs: np.ndarray) -> Difference:
    """The difference of the losses of two runs, from scores [1 + R, N]: the base model's, then each
    evaluation's.

    A loss is the base score minus the mean score of R evaluations. The difference of two losses,
    (base - changed) - (base' - changed'), is (base + changed') - (base' + changed): twice the
    difference of two means over 2 R evaluations, in which each base score counts R times. So one
    paired interval serves for both losses.
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
