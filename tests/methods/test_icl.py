"""`method=icl`: demonstrations before every question.

Broken by: demonstrations that are not the nearest, or not in order; one that is cut in two;
other demonstrations for a choice that is scored after an interruption; a test label that reaches
a prompt; a request that is refused only after weights were loaded.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from moe_lab.engine.lm import EngineLM
from moe_lab.methods.icl_lm import FILE, DemonstrationLM, ScoredPrompt
from tests.support import rounding
from tests.support.command import run_command
from tests.support.ended import block_of
from tests.support.models import make_model, make_tokenizer
from tests.support.opened_methods import answered, context
from tests.support.runs import arc

QUESTION = "Q: seven?\nAnswer:"
TEXTS = ["Q: one?\nAnswer:", "Q: two?\nAnswer:", "Q: three?\nAnswer:", "Q: seven!\nAnswer:"]
BEHIND = "Q: three?\nAnswer: C\n\nQ: one?\nAnswer: A\n\nQ: seven?\nAnswer:"
"""With k=2: the nearest last, and without the last reference, which is too similar."""
EMBEDDING = torch.tensor([[0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.6, 0.6, 0.1], [1.0, 0.0, 0.0]])


def references() -> SimpleNamespace:
    def embed(texts: list[str], model: object) -> torch.Tensor:
        return torch.tensor([[1.0, 0.0, 0.0]] * len(texts))

    rows = torch.nn.functional.normalize(EMBEDDING, dim=1)
    return SimpleNamespace(
        texts=TEXTS, answers=[" A", " B", " C", " D"], embedding_RX=rows, embed=embed
    )


@pytest.fixture(scope="module")
def loaded() -> SimpleNamespace:
    return SimpleNamespace(model=make_model("olmoe"), tokenizer=make_tokenizer())


def language_model(loaded, folder: Path | None = None, max_length: int | None = None, k: int = 2):
    config = context().config
    config.max_length = max_length
    scored = ScoredPrompt("\n\n", {" A", " B", " much longer"})
    scored_prompts = {QUESTION: scored, "": ScoredPrompt("\n\n", {" A"})}
    settings = SimpleNamespace(k=k, most_similar=0.999)
    return DemonstrationLM(loaded, config, settings, references(), scored_prompts, folder)


def answers(lm: EngineLM, *pairs: tuple[str, str]) -> list[float]:
    return [score for score, _ in answered(lm, "loglikelihood", pairs)]


def test_questions_are_scored_behind_their_nearest_references(loaded, tmp_path):
    lm = language_model(loaded, tmp_path)
    plain = EngineLM(loaded.model, loaded.tokenizer)
    scores = answers(lm, (QUESTION, " A"), (QUESTION, " B"))
    assert scores == rounding.approx(answers(plain, (BEHIND, " A"), (BEHIND, " B")))
    assert json.loads((tmp_path / FILE).read_text()) == {"prompt": QUESTION, "asked": BEHIND}
    assert lm.cost["reference_dropped"] == 1
    assert lm.cost["demonstrations_dropped"] == 0


def test_a_question_without_neighbours_is_asked_plainly(loaded):
    lm = language_model(loaded)
    plain = EngineLM(loaded.model, loaded.tokenizer)
    lm._settings = SimpleNamespace(k=2, most_similar=-1.0)
    assert answers(lm, (QUESTION, " A")) == rounding.approx(answers(plain, (QUESTION, " A")))
    assert lm.cost["reference_none"] == 1
    assert lm.cost["reference_dropped"] == 4


def test_a_choice_by_itself_has_no_demonstrations(loaded):
    plain = EngineLM(loaded.model, loaded.tokenizer)
    assert answers(language_model(loaded), ("", " A")) == rounding.approx(
        answers(plain, ("", " A"))
    )


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_what_does_not_fit_is_left_out_whole_the_farthest_first(loaded, dropped):
    """A token is a byte; the longest of all continuations has to fit, whichever is scored now."""
    demonstrations = BEHIND.split("\n\n", dropped)[-1]
    room = len(demonstrations) + len(" much longer") - 1
    fits = language_model(loaded, max_length=room)
    plain = EngineLM(loaded.model, loaded.tokenizer)
    assert answers(fits, (QUESTION, " A")) == rounding.approx(
        answers(plain, (demonstrations, " A"))
    )
    assert fits.cost["demonstrations_dropped"] == dropped
    tighter = language_model(loaded, max_length=room - 1)
    answers(tighter, (QUESTION, " A"))
    assert tighter.cost["demonstrations_dropped"] == min(dropped + 1, 2)


def command(capsys, folder, *keys):
    return run_command(capsys, "method=icl", f"output_dir={folder}", *keys)


def prompts(folder: Path) -> list[dict[str, str]]:
    [file] = folder.glob(f"runs/*-icl-*/{FILE}")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_the_command_shows_references_that_were_answered_correctly(tmp_path, capsys):
    ended = command(capsys, tmp_path, "task=toy_choice", "limit=6", "method.reference_size=64")
    block = block_of(ended)
    assert block["icl"]["k"] == 3
    assert block["icl"]["reference"]["set"]["asked"] == 64
    [file] = tmp_path.glob("references/*/references.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    right = {line["text"] + line["answer"] for line in lines if line["correct"]}
    assert len(prompts(tmp_path)) == 6
    for line in prompts(tmp_path):
        *demonstrations, question = line["asked"].split("\n\n")
        assert len(demonstrations) == 3
        assert set(demonstrations) <= right
        assert question == line["prompt"]
    keys = ["task=toy_choice", "limit=2", "method.reference_size=64", f"output_dir={tmp_path}"]
    assert run_command(capsys, "method=c3po", *keys).code == 0
    assert [*tmp_path.glob("references/*/references.jsonl")] == [file], "C3PO's set is the same"


@pytest.mark.slow
def test_test_labels_reach_no_prompt(tmp_path, capsys):
    prompts_asked = []
    for letters in ("ABCABC", "CABBCA"):
        data = arc(tmp_path / letters, letters)
        keys = [
            f"data_dir={data}",
            "task=arc_easy",
            "method.reference=arc_easy:train",
            "method.k=1",
        ]
        assert command(capsys, tmp_path / f"out-{letters}", *keys).code == 0
        prompts_asked.append(prompts(tmp_path / f"out-{letters}"))
    assert prompts_asked[0] == prompts_asked[1]
