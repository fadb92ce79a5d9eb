"""The samples that lm-eval logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moe_lab.models.lm_eval_internals import TEXT, answers_of_lm_eval
from moe_lab.tasks.lm_eval_versions import has_scorers


def logged_samples(
    tasks: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """The samples that lm-eval logs of each task, in 0.4's form.

    0.5 has a list for each filtered response, ("", text) for a whole text, and the place of the
    right answer in place of a text that is scored.
    """
    logged = {}
    for name, lines in samples.items():
        if has_scorers():
            logged[name] = [_logged_sample(tasks[name], line) for line in lines]
        else:
            logged[name] = [dict(line) for line in lines]
    return logged


def _logged_sample(task: Any, line: Mapping[str, Any]) -> dict[str, Any]:
    """A sample of 0.5 in 0.4's form."""
    from lm_eval.utils import hash_string

    filtered = []
    for response in line["filtered_resps"]:
        filtered.append(response[0] if len(response) == 1 else response)
    sample = {**line, "filtered_resps": filtered}
    if task.OUTPUT_TYPE == TEXT:
        sample["arguments"] = [arguments[-1:] for arguments in line["arguments"]]
        sample["resps"] = [answers_of_lm_eval(TEXT, list(responses)) for responses in line["resps"]]
        sample["filtered_resps"] = answers_of_lm_eval(TEXT, filtered)
        sample["prompt_hash"] = hash_string(sample["arguments"][0][0])
    sample["target"] = task.doc_to_target(line["doc"])
    sample["target_hash"] = hash_string(str(sample["target"]))
    return sample
