"""C3PO on a model of one's own answers what the command answers.

Broken by: references, settings or embeddings that differ from the command's;
gradients that `generate` disables.
"""

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from moe_lab import C3PO, RoE
from moe_lab.cli.main import main
from moe_lab.errors import ConfigError
from tests.support import rounding
from tests.support.ensembles import answered
from tests.support.models import left_padded, small_model
from tests.support.tiers import first_fast

PAIRS = [
    ("two and two", " four"),
    ("one and one are", " two"),
    ("a cat is", " an animal"),
    ("a dog", " too"),
]
KEYS = {"layers": "last2", "k": 2, "steps": 2, "core_experts": 4, "learning_rate": [0.5, 0.1]}
SHORT_PROMPT = "one and two"
LONG_PROMPT = "a cat and a dog are"


@pytest.fixture(params=first_fast(["olmoe", "mixtral", "gpt_oss"]))
def model(request):
    return small_model(request.param)


def test_prompts_are_scored_with_optimized_pathways(model, tokenizer):
    c3po = C3PO(model, tokenizer, PAIRS, **KEYS)
    base = RoE(model, tokenizer, n=1)
    optimized = c3po.loglikelihood(SHORT_PROMPT, [" three", " four"])
    unchanged = base.loglikelihood(SHORT_PROMPT, [" three", " four"])
    changes = [abs(optimized[0] - unchanged[0]), abs(optimized[1] - unchanged[1])]
    assert max(changes) > 1e-3
    for module in model.modules():
        assert not module._forward_hooks


def test_no_step_changes_nothing(model, tokenizer):
    c3po = C3PO(model, tokenizer, PAIRS, **KEYS | {"steps": 0})
    unchanged = RoE(model, tokenizer, n=1).loglikelihood(SHORT_PROMPT, " three")
    assert c3po.loglikelihood(SHORT_PROMPT, " three") == rounding.approx(unchanged, 6)


def test_the_next_tokens_distribution_is_that_of_scores(model, tokenizer):
    c3po = C3PO(model, tokenizer, PAIRS, **KEYS)
    log_probs_V = c3po.next_token_logprobs(tokenizer.encode(SHORT_PROMPT))
    [blank] = tokenizer.encode(" ")
    expected = c3po.loglikelihood(SHORT_PROMPT, " ")
    assert float(log_probs_V[blank]) == rounding.approx(expected)


def test_text_is_that_of_lm_eval(model, tokenizer):
    prompts = [SHORT_PROMPT, LONG_PROMPT]
    c3po = C3PO(model, tokenizer, PAIRS, **KEYS, persistence="all_new")
    requests = [(prompt, {"until": [], "max_gen_toks": 5}) for prompt in prompts]
    texts = answered(c3po.lm, "generate_until", requests)

    assert c3po.generate(prompts, max_new_tokens=5) == texts
    ids = model.generate(
        **left_padded(tokenizer, prompts),
        custom_generate=c3po,
        max_new_tokens=5,
        do_sample=False,
    )
    assert tokenizer.batch_decode(ids[:, -5:], skip_special_tokens=True) == texts


@pytest.mark.parametrize("name", ["", "none"])
def test_a_folder_without_references_is_named(name, tmp_path, olmoe, tokenizer):
    folder = tmp_path / name
    with pytest.raises(ConfigError, match="No such file.*below outputs/references/") as refused:
        C3PO(olmoe, tokenizer, folder, **KEYS)
    assert str(folder) in str(refused.value)


# With the references of a command


class Command(NamedTuple):
    """What `method=c3po` with KEYS left."""

    model: Any
    tokenizer: Any
    references: Path
    """The folder."""
    samples: list[dict[str, Any]]
    """Its stored answers."""


@pytest.fixture(scope="module")
def command(tmp_path_factory, tiny_olmoe_dir) -> Command:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    output = tmp_path_factory.mktemp("output")
    overrides = [
        "method=c3po",
        f"model.path={tiny_olmoe_dir}",
        "task=toy_choice",
        "limit=3",
        "method.layers=last2",
        "method.k=2",
        "method.steps=2",
        "method.core_experts=4",
        "method.learning_rate=[0.5,0.1]",
        "method.reference_size=30",
        "baseline=false",
        f"output_dir={output}",
    ]
    assert main(overrides) == 0
    [references] = (output / "references").iterdir()
    [samples_file] = output.glob("runs/*/samples_*.jsonl")
    return Command(
        AutoModelForCausalLM.from_pretrained(tiny_olmoe_dir).eval(),
        AutoTokenizer.from_pretrained(tiny_olmoe_dir),
        references,
        json_lines(samples_file),
    )


def json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def correct_pairs(references: Path) -> list[tuple[str, str]]:
    """The questions that the model answered correctly, with their answers."""
    pairs = []
    for line in json_lines(references / "references.jsonl"):
        if line["correct"]:
            pairs.append((line["text"], line["answer"]))
    return pairs


def assert_answers_of_command(c3po: C3PO, command: Command) -> None:
    for sample in command.samples:
        prompts = [request["arg_0"] for request in sample["arguments"].values()]
        choices = [request["arg_1"] for request in sample["arguments"].values()]
        stored = [float(response[0][0]) for response in sample["resps"]]
        assert c3po.loglikelihood(prompts, choices) == pytest.approx(stored, abs=1e-3)


@pytest.mark.slow
def test_answers_are_those_of_the_command(command):
    assert len(command.samples) == 3
    references = command.references
    c3po = C3PO(command.model, command.tokenizer, references, **KEYS)
    assert_answers_of_command(c3po, command)
    c3po = C3PO(command.model, command.tokenizer, correct_pairs(references), **KEYS)
    assert_answers_of_command(c3po, command)


def shuffled(model: Any) -> Any:
    """A copy with the same weights in another order."""
    shuffled_model = copy.deepcopy(model)
    with torch.no_grad():
        for weight in shuffled_model.parameters():
            generator = torch.Generator().manual_seed(0)
            weight.copy_(weight[torch.randperm(len(weight), generator=generator)])
    return shuffled_model


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.slow
def test_references_of_another_model_or_with_other_embeddings_are_refused(command):
    before = contents(command.references)
    refused = [
        (shuffled(command.model), KEYS),
        (small_model("mixtral"), KEYS),
        (command.model, KEYS | {"tokens": "last2"}),
        (command.model, KEYS | {"tokens": "first1"}),
    ]
    for model, keys in refused:
        with pytest.raises(ConfigError, match="does not fit: .* Use a set of this model"):
            C3PO(model, command.tokenizer, command.references, **keys)
    assert contents(command.references) == before


@pytest.mark.slow
def test_references_of_the_model_in_another_precision_are_taken(command):
    half = copy.deepcopy(command.model).to(torch.bfloat16)
    C3PO(half, command.tokenizer, command.references, **KEYS)
