"""What tasks of lm-eval 0.4 and of the development release of 0.5 have in other places, in one
place.

In 0.4 a task reads its documents when it is made, has filters and metric functions, and computes
all metrics of a document in `process_results`. In 0.5 it reads documents when they are asked for,
and has scorers: each has a filter and its metrics. This package's own task files are written for
0.4.
"""


def has_scorers() -> bool:
    """Whether the installed lm-eval's tasks have scorers, as 0.5 has."""
    from lm_eval.api.task import Task

    return hasattr(Task, "scorers")
