"""Tokenizers that add tokens to a text, or lack some.

Broken by: numbers other than those of lm-eval's `hf`, a note that is not made, a traceback in place
of answers that end at the length.
"""

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError
from moe_lab.models.lm_eval_internals import answers_of_lm_eval, instance_of
from tests.support.command import run_command
from tests.support.models import make_model, make_tokenizer, save_model, small_model

END = 256
BEGIN = 257
NOTES = {"eos_added", "bos_scored", "no_end_token"}
FAMILIES = pytest.mark.parametrize("family", ["olmoe", "qwen3_next"], ids=["engine", "hf"])


def adding(form: str):
    """A byte tokenizer that frames a text, `$A`, with special tokens."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
    special = [("<|end|>", END), ("<|begin|>", BEGIN)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=form, special_tokens=special
    )
    assert ("<|end|>" in form) == (tokenizer.encode("a")[-1] == END)
    return tokenizer


def without(**roles: str):
    """A byte tokenizer with these special tokens alone."""
    return PreTrainedTokenizerFast(tokenizer_object=make_tokenizer().backend_tokenizer, **roles)


def answers(lm, kind: str, *requests: tuple) -> list:
    answers_by_index = {}
    lm.answer(kind, [Request(arguments) for arguments in requests], answers_by_index.__setitem__)
    return [answers_by_index[number] for number in range(len(requests))]


def instances(kind: str, *requests: tuple) -> list[Instance]:
    return [instance_of(kind, arguments) for arguments in requests]


def notes(lm) -> dict[str, int]:
    return {name: count for name, count in lm.cost.items() if name in NOTES}


PAIRS = [("Who lives in Rome?", " Ann"), ("And in Oslo? ", "Bob")]
TEXTS = [("Ann lives in Rome.",), ("Bob",)]


@FAMILIES
@pytest.mark.parametrize(
    "form, scored, rolled",
    [
        ("$A", {}, {}),
        ("<|begin|> $A", {}, {"bos_scored": 2}),
        ("$A <|end|>", {"eos_added": 2}, {"eos_added": 4}),
        ("<|begin|> $A <|end|>", {"eos_added": 2}, {"eos_added": 4, "bos_scored": 2}),
    ],
)
def test_numbers_are_lm_evals_and_what_a_tokenizer_adds_is_counted(form, scored, rolled, family):
    model = small_model(family)
    tokenizer = adding(form)
    lm = EngineLM(model, tokenizer, progress=False)
    reference = HFLM(pretrained=model, tokenizer=tokenizer)
    expected_answers = reference.loglikelihood(
        instances("loglikelihood", *PAIRS), disable_tqdm=True
    )
    for (value, _), (expected, _) in zip(
        answers(lm, "loglikelihood", *PAIRS), expected_answers, strict=True
    ):
        assert value == pytest.approx(expected, abs=1e-4)
    assert notes(lm) == scored
    rolled_texts = reference.loglikelihood_rolling(
        instances("loglikelihood_rolling", *TEXTS), disable_tqdm=True
    )
    rolling = answers_of_lm_eval("loglikelihood_rolling", rolled_texts)
    assert answers(lm, "loglikelihood_rolling", *TEXTS) == pytest.approx(rolling, abs=1e-4)
    assert notes(lm) == rolled


def test_an_added_end_takes_the_place_of_the_first_token_and_an_added_beginning_is_scored():
    """By hand, what the notes say."""
    lm = EngineLM(small_model("olmoe"), adding("$A <|end|>"), progress=False)
    context, answer = lm.encode_pair("ab", "cd")
    letters = make_tokenizer()("abcd").input_ids
    assert (context, answer) == ((*letters[:2], END), (letters[3], END))
    lm = EngineLM(small_model("olmoe"), adding("<|begin|> $A"), progress=False)
    assert lm.encoder.windows("ab") == [((BEGIN,), (BEGIN, *letters[:2]))]
    lm = EngineLM(small_model("olmoe"), adding("<|begin|> $A"), add_bos_token=False, progress=False)
    assert lm.encoder.windows("ab") == [((BEGIN,), tuple(letters[:2]))]
    answers(lm, "loglikelihood_rolling", *TEXTS)
    assert notes(lm) == {}


@FAMILIES
@pytest.mark.parametrize("roles", [{}, {"bos_token": "<|end|>"}], ids=["neither", "no end"])
def test_without_an_end_token_answers_go_to_the_length(roles, family, monkeypatch):
    model = small_model(family)
    monkeypatch.setattr(model.generation_config, "eos_token_id", None)
    lm = EngineLM(model, without(**roles), progress=False)
    options = {"until": [], "max_gen_toks": 5, "do_sample": False}
    answers(lm, "generate_until", ("Who lives in Rome?", options), ("And in Oslo?", options))
    assert lm.cost["tokens_out"] == 10
    assert notes(lm) == {"no_end_token": 2}


@FAMILIES
def test_an_end_token_of_the_model_ends_answers_and_needs_no_note(family, monkeypatch):
    model = small_model(family)
    monkeypatch.setattr(model.generation_config, "eos_token_id", END)
    lm = EngineLM(model, without(), progress=False)
    answers(lm, "generate_until", ("Who?", {"until": [], "max_gen_toks": 2, "do_sample": False}))
    assert notes(lm) == {}


@FAMILIES
def test_without_any_such_token_contexts_are_scored_and_texts_without_one_are_refused(family):
    model = small_model(family)
    lm = EngineLM(model, without(), progress=False)
    with_end = EngineLM(model, make_tokenizer(), progress=False)
    scores = answers(lm, "loglikelihood", *PAIRS)
    expected = answers(with_end, "loglikelihood", *PAIRS)
    assert [value for value, _ in scores] == pytest.approx(
        [value for value, _ in expected], abs=1e-5
    )
    with pytest.raises(ConfigError, match="neither a beginning nor an end token"):
        answers(lm, "loglikelihood_rolling", *TEXTS)


@pytest.mark.slow
def test_the_command_shows_the_notes(tmp_path, capsys):
    keys = ("method=base", "limit=2", f"output_dir={tmp_path}")
    for name, form in {"begins": "<|begin|> $A", "ends": "$A <|end|>"}.items():
        save_model(make_model("olmoe"), tmp_path / name, adding(form))
    save_model(
        make_model("olmoe", eos_token_id=None), tmp_path / "endless", without(bos_token="<|end|>")
    )
    for name, task, note in (
        ("begins", "toy_text", "bos-scored"),
        ("ends", "toy_choice", "eos-added"),
        ("endless", "toy_math", "no-end-token"),
    ):
        ended = run_command(capsys, *keys, f"task={task}", f"model.path={tmp_path / name}")
        assert ended.code == 0, ended.out + ended.err
        assert f"{note}: " in ended.out, ended.out + ended.err
