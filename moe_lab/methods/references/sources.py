"""The reference sets of a task: those of the paper's Table 7, or those that `method.reference=` names."""

from __future__ import annotations

from dataclasses import dataclass

from moe_lab.errors import ConfigError

LONGEST_NAME = 200
"""Characters of a task's name."""


@dataclass(frozen=True)
class Source:
    """A reference set as the paper counts them."""

    title: str
    tasks: tuple[str, ...]
    """Options of conf/task/ or lm-eval's names, with the split behind a colon where it is not the usual one."""
    size: int | None = None
    """At most so many documents of all its tasks; None: all."""
    hub_tasks: tuple[str, ...] = ()
    """Names that take the place of `tasks` where there is no data_dir."""
    own: bool = False
    """Whether this is the train split of the evaluated task."""


COMMONSENSE = (
    Source("CommonsenseQA", ("commonsense_qa",), 6000),
    Source("Social-IQA", ("social_iqa",), 6000),
)
SCIENCE = (Source("OpenBookQA", ("openbookqa",), 2000), Source("SciQ", ("sciq",), 2000))
GENERAL = (
    Source(
        "BIG-bench", ("bigbench_choice",), 8000, ("bigbench_multiple_choice_a", "bigbench_multiple_choice_b")
    ),
    # Not ReCoRD, which has no choices of its own, nor MultiRC, whose labels lm-eval 0.4.13 takes for one another.
    Source("SuperGLUE", ("boolq", "cb", "copa", "sglue_rte", "wic", "wsc"), 8000),
)
TABLE_7 = {
    "mmlu": GENERAL,
    "hellaswag": COMMONSENSE,
    "piqa": COMMONSENSE,
    "arc_challenge": SCIENCE,
    "arc_easy": SCIENCE,
    "winogrande": (Source("KnowRef", ("knowref",), 2000),),
}
"""The paper's reference sets and their sizes by lm-eval's name of the task."""
TOY = {
    "toy_choice": (Source("near", ("toy_choice:near",)),),
    "toy_rules": (Source("plus", ("toy_rules:plus",)),),
    "toy_rules_max": (Source("max", ("toy_rules:max",)),),
}
"""The toy world's own. `toy_choice:far` asks about other things than the test does. The references of `toy_rules` and
`toy_rules_max` have the meaning of the task; the other task's have the other meaning."""


def reference_sources(task: str | list[str], reference: str | list[str] | None) -> tuple[str, list[Source]]:
    """(label, sources) of an evaluated task, or of several: what `reference` names, else the paper's, else its own."""
    if reference is not None:
        names = [reference] if isinstance(reference, str) else list(reference)
        for name in names:
            if len(name) > LONGEST_NAME:
                raise ConfigError(f"method.reference={name[:LONGEST_NAME]}...: no task has so long a name.")
        if not names:
            raise ConfigError("method.reference=[] names no task. Leave it out, or name an lm-eval task.")
        return "method.reference", [Source(name, (name,)) for name in names]
    rows = [_row(name) for name in ([task] if isinstance(task, str) else task)]
    sources = list(dict.fromkeys(source for _, found in rows for source in found))
    return ", ".join(dict.fromkeys(label for label, _ in rows)), sources


def _row(task: str) -> tuple[str, tuple[Source, ...]]:
    name = "mmlu" if task.startswith("mmlu_") else task
    if name in TABLE_7:
        return "Table 7", TABLE_7[name]
    if name in TOY:
        return "the toy world's own", TOY[name]
    return "own train split", (Source(f"{task}, train", (task,), own=True),)
