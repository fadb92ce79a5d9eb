"""Breaks if requests or answers have another form than that of the installed lm-eval, or run
ids depend on its version."""

from types import SimpleNamespace

import pytest

from moe_lab.models.lm_eval_internals import (
    TEXT,
    aggregation_of_metric,
    answers_for_lm_eval,
    answers_of_lm_eval,
    instance_of,
    request_arguments,
    set_settings,
)
from tests.support.runs import load_task

ARGUMENTS = {
    "loglikelihood": ("a", " b"),
    TEXT: ("a b",),
    "generate_until": ("a", {"until": []}),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_the_arguments_of_an_instance_are_those_that_it_was_made_of(kind):
    instance = instance_of(kind, ARGUMENTS[kind])
    assert request_arguments(instance) == ARGUMENTS[kind]


@pytest.mark.parametrize("name", ["toy_text", "toy_cloze", "toy_math"])
def test_instances_are_those_of_lm_evals_own_tasks(name):
    task = load_task(None, name)
    task.build_all_requests(samples=[0])
    [expected_instance] = task.instances
    ours = instance_of(expected_instance.request_type, request_arguments(expected_instance))
    assert (ours.request_type, ours.args) == (
        expected_instance.request_type,
        expected_instance.args,
    )


def test_answers_to_a_whole_text_are_numbers_here():
    for kind, answers in (
        ("loglikelihood", [(-1.0, True)]),
        (TEXT, [-1.0, -2.0]),
        ("generate_until", ["a"]),
    ):
        assert answers_of_lm_eval(kind, answers_for_lm_eval(kind, answers)) == answers


def test_perplexities_have_the_functions_that_statistics_know():
    names = {
        "word_perplexity": "weighted_perplexity",
        "byte_perplexity": "weighted_perplexity",
        "bits_per_byte": "bits_per_byte",
        "perplexity": "perplexity",
        "acc": "mean",
    }
    for metric, name in names.items():
        assert aggregation_of_metric(metric).__name__ == name
    assert aggregation_of_metric("no metric") is None


def test_settings_that_a_version_adds_to_all_tasks_are_in_no_run_id():
    added = {"multiple_inputs": False, "multiple_targets": False, "_qualified_name": "group::t"}
    assert set_settings(SimpleNamespace(task="t", **added)) == {"task": "t"}
    instance = SimpleNamespace(task="t", multiple_inputs=True)
    assert set_settings(instance) == {"task": "t", "multiple_inputs": True}
