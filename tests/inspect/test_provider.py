"""The model provider of inspect_ai, in an environment of its own (`make test-inspect`).

Broken by: an entry point that names nothing, other texts than the method's own, chats that get each
other's answers, a setting that does nothing.
"""

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

import moe_lab
from moe_lab.api.inspect_model import generation_settings
from moe_lab.errors import ConfigError
from moe_lab.models.tokenizer import with_template

QUESTIONS = [f"What is {number} plus 1?" for number in range(6)]


def test_chats_are_answered_as_the_method_answers_their_prompts(tmp_path):
    samples = [Sample(input=question, target="x") for question in QUESTIONS]
    task = Task(
        dataset=samples,
        solver=generate(),
        scorer=includes(),
        config=GenerateConfig(max_tokens=8),
    )
    model = get_model("moe_lab/tiny", method="roe", n=2, temperature=0.3, dtype="float32")
    [log] = eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error

    plain, tokenizer = moe_lab.tiny()
    with_template(tokenizer)
    roe = moe_lab.RoE(plain.float(), tokenizer, n=2, temperature=0.3)
    for sample, question in zip(log.samples, QUESTIONS, strict=True):
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        [expected] = roe.generate([prompt], max_new_tokens=8)
        assert sample.output.completion == expected
        assert 0 < sample.output.usage.output_tokens <= 8


def test_settings_of_a_generation_are_lm_evals():
    config = GenerateConfig(max_tokens=5, temperature=0.7, top_p=0.9, stop_seqs=["."], timeout=3)
    assert generation_settings(config) == {
        "until": ["."],
        "max_gen_toks": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "do_sample": True,
    }
    assert generation_settings(GenerateConfig())["do_sample"] is False
    for given in ({"frequency_penalty": 1.0}, {"num_choices": 2}, {"seed": 3}, {"logprobs": True}):
        with pytest.raises(ConfigError, match="has no effect on a model of moe_lab"):
            generation_settings(GenerateConfig(**given))


def test_an_unknown_key_is_refused():
    with pytest.raises(ConfigError, match="temprature"):
        get_model("moe_lab/tiny", method="roe", temprature=0.3)
