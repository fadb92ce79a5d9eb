"""The table of several answers to a document.

Broken by: a score that is missing, one that is shown as another, a table where there is one answer,
that of HumanEval included, whose own metric is pass@1.
"""

from types import SimpleNamespace

from moe_lab.reports.several_answers import answer_scores
from tests.support.command import run_command

COMMAND = ["method=roe", "method.n=2", "task=toy_math", "limit=4"]


def test_every_score_of_several_answers_has_a_line(capsys, tmp_path):
    folder = f"output_dir={tmp_path}"
    ended = run_command(capsys, *COMMAND, "samples_per_document=3", folder)
    assert ended.code == 0, ended.err
    [result] = ended.results
    scores = result["results"]["toy_math"]
    table = ended.out.partition("Several answers to a document")[2]
    lines = [line.split() for line in table.splitlines() if line.startswith(("base", "roe"))]
    metrics = [f"{name},none" for name in ("avg@3", "pass@1", "pass@2", "pass@3", "maj@3")]
    assert [words[:2] for words in lines] == [
        [method, metric] for method in ("base", "roe") for metric in metrics
    ]
    for words in lines[len(metrics) :]:
        assert float(words[2]) == round(scores[words[1]], 4)

    ended = run_command(capsys, *COMMAND, folder)
    assert "Several answers" not in ended.out


def test_a_task_whose_own_metric_is_pass_at_1_has_no_table():
    results = {"humaneval": {"alias": "humaneval", "pass@1,create_test": 0.5}}
    assert answer_scores(SimpleNamespace(lm_eval=SimpleNamespace(results=results))) == []
