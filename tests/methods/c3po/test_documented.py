"""The values in docs/c3po.md are those of the code: readings that decide published rows,
where the paper is silent.

Broken by: a default that changes without its row, a reading whose row is gone, a guessed checkpoint
of Table 13 or a metric of Table 2 that the pages do not name.
"""

from itertools import groupby
from pathlib import Path

import pytest
import yaml

from moe_lab.methods.c3po.config import ALPHAS, KEPT, C3POConfig
from moe_lab.methods.c3po.descent import learning_rates
from moe_lab.methods.icl import ICL
from moe_lab.methods.virtual_tokens.method import PrefixTuning, SoftPrompt

ROOT = Path(__file__).resolve().parents[3]
HEADING = "## Where this differs from the paper, or the paper is silent"


def here(subject: str) -> str:
    """The column "here" of the row that begins with a subject."""
    page = (ROOT / "docs" / "c3po.md").read_text(encoding="utf-8")
    table = page.partition(HEADING)[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith(f"| {subject}")]
    assert len(rows) == 1, subject
    return rows[0].split(" | ")[2]


def published_cells(table: str) -> list[dict]:
    text = (ROOT / "experiments" / "c3po" / f"{table}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["paper"]


def test_step_decay():
    default = C3POConfig()
    rates = learning_rates("step", *default.learning_rate, default.steps)
    stated = here("step decay")
    assert f"of {default.steps} steps" in stated
    for rate, group in groupby(f"{rate:g}" for rate in rates):
        assert f"{len(list(group))} of {rate}" in stated


def test_alpha_of_kernel_regression():
    first, second, *_, last = ALPHAS
    assert f"{len(ALPHAS)} values: {first:g}, {second:g}, ..., {last:g}" in here(
        "α in kernel regression"
    )


def test_alpha_and_shifts_of_mode_finding():
    default = C3POConfig()
    stated = here("α and steps of mode finding")
    assert f"α = {KEPT}, {default.shifts} shifts; k = {default.k} neighbours" in stated


def test_examples_of_in_context_learning():
    assert here("examples of in-context learning").startswith(f"{ICL.Config().k} examples")


@pytest.mark.parametrize(
    ("subject", "method"), [("soft prompt", SoftPrompt), ("prefix tuning", PrefixTuning)]
)
def test_recipes_of_virtual_tokens(subject, method):
    recipe = method.Config()
    stated = here(f"{subject} (Table 1)")
    for value in (
        f"{recipe.virtual_tokens} virtual tokens",
        f"weight decay {recipe.trainer_defaults['weight_decay']}",
        f"learning rate {recipe.learning_rate} ",
        f"{recipe.epochs} epochs",
        f"{recipe.batch_size} questions per step",
    ):
        assert value in stated


def test_guessed_embedding_models_of_table_13():
    stated = here('"All-Mini-V6", "Sentence-Bert"')
    mmlu_of = {
        cell["cell"].get("method.embeddings"): cell["value"][0]
        for cell in published_cells("table13")
    }
    guessed = {
        name: mmlu for name, mmlu in mmlu_of.items() if name and not name.startswith("vectors/")
    }
    assert list(guessed.values()) == [58.9, 61.2], (
        "the published rows All-Mini-V6 and Sentence-Bert"
    )
    for name in guessed:
        assert f"`{name}`" in stated


def test_metrics_of_table_2():
    """Of rows by text the headline of conf/task/, of which the page names the normalized ones."""
    tasks = published_cells("table2")[0]["cell"]["task"][:-1]
    normalized = []
    for task in tasks:
        text = (ROOT / "conf" / "task" / f"{task}.yaml").read_text(encoding="utf-8")
        if yaml.safe_load(text)["metric"] == "acc_norm,none":
            normalized.append(task)
    assert normalized == ["hellaswag", "arc_challenge", "arc_easy", "piqa"]
    page = " ".join((ROOT / "docs" / "c3po_figures.md").read_text(encoding="utf-8").split())
    assert (
        "`acc_norm,none` (log-likelihood per character) of HellaSwag, ARC-C, ARC-E and PIQA" in page
    )
