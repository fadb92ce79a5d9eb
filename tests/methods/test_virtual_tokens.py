"""`method=soft-prompt` and `method=prefix-tuning`.

The tests cover the command, scores through lm-eval's own code, and the training.

Broken by: an adapter that is trained again for another task or another limit, or taken for that of
another recipe, seed or set of questions; anything that stays on the model which the next run of a
grid is given; a prompt that does not begin after the virtual tokens, padding that is read, a family
that peft cannot serve and that is not refused, a loss that counts the prompt or padding, a resumed
training that ends in another adapter.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from moe_lab.cli.main import main
from moe_lab.config.compose import compose_cell
from moe_lab.methods.trainer import MoeTrainer
from moe_lab.methods.virtual_tokens import training
from moe_lab.methods.virtual_tokens.training import VirtualTokensLM, refusal, with_adapter
from moe_lab.models.source import TINY
from moe_lab.runs.config import to_config
from moe_lab.runs.planning.workload import workload_of
from moe_lab.runs.prepare import prepare
from tests.support import rounding
from tests.support.command import exit_code, run_command
from tests.support.ended import answers, block_of, samples_of
from tests.support.ensembles import answered
from tests.support.families import ZOO
from tests.support.models import make_tokenizer, small_config, small_model
from tests.support.runs import arc, choices, write_jsonl
from tests.support.tiers import by_family

METHODS = ("soft-prompt", "prefix-tuning")
SHORT = ["task=toy_choice", "limit=3", "method.reference_size=16", "method.epochs=2"]


def command(capsys, method, folder, *keys):
    return run_command(capsys, f"method={method}", f"output_dir={folder}", *keys)


def models(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "models").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_is_trained_stored_in_pefts_format_and_scores(method, tmp_path, capsys):
    """The answers are those of the stored adapter under peft."""
    ended = command(capsys, method, tmp_path, *SHORT)
    block = block_of(ended)[method.replace("-", "_")]
    assert block["virtual_tokens"] == 20
    assert block["training"]["questions"] == 16
    assert block["training"]["steps"] == 4
    folder = tmp_path / "models" / block["adapter"]
    assert not (folder / "status.json").exists()
    assert json.loads((folder / "training.json").read_text())["method"]["epochs"] == 2
    assert len((folder / "log.jsonl").read_text().splitlines()) == 4
    assert not (folder / "checkpoints").exists()
    assert answers(tmp_path, method) != answers(tmp_path, "base")

    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    wrapped = PeftModel.from_pretrained(model, folder / "adapter").eval()
    for sample in samples_of(tmp_path, method):
        for request, responses in zip(sample["arguments"].values(), sample["resps"], strict=True):
            prompt_ids = tokenizer(request["arg_0"]).input_ids
            ids = tokenizer(request["arg_0"] + request["arg_1"]).input_ids
            with torch.no_grad():
                logits = wrapped(input_ids=torch.tensor([ids[:-1]])).logits[0]
            expected = log_likelihood(logits, ids[len(prompt_ids) :])
            score = float(responses[0][0])
            assert score == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_planned_tokens_are_those_that_are_read(method, tmp_path, capsys):
    """Questions whose prompts begin alike, with answers of one token and of several."""
    keys = [*SHORT, "task=toy_rules", "task.answer=text"]
    overrides = [f"method={method}", f"output_dir={tmp_path}", *keys]
    run = prepare(to_config(compose_cell(overrides, [])))
    planned_tokens = run.method.forward_tokens(workload_of(run), run.config, run.facts)
    block = block_of(command(capsys, method, tmp_path, *keys))
    assert block["cost"]["tokens_in"] == planned_tokens


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_an_adapter_is_trained_once_for_all_tasks_and_before_any_answer(
    tmp_path, capsys, monkeypatch
):
    write_jsonl(tmp_path / "data" / "arc_challenge" / "test.jsonl", choices(6))
    keys = [
        f"data_dir={arc(tmp_path / 'data')}",
        "method.reference=arc_easy:train",
        "method.epochs=1",
        "limit=2",
        "baseline=false",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(training.VirtualTokensLM, "answer", interrupted)
        ended = command(capsys, "soft-prompt", tmp_path, "task=arc_easy", *keys)
    assert ended.code == 130
    [first] = models(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", None)
        for evaluated in (["task=arc_easy"], ["task=arc_challenge"], ["task=arc_easy", "limit=1"]):
            ended = command(capsys, "soft-prompt", tmp_path, *keys, *evaluated)
            assert ended.code == 0, ended.err
    assert models(tmp_path) == [first]
    for recipe in (
        "seed=1",
        "method.learning_rate=0.02",
        "method.virtual_tokens=4",
        "method.reference_size=9",
    ):
        ended = command(capsys, "soft-prompt", tmp_path, "task=arc_easy", *keys, recipe)
        assert ended.code == 0, ended.err
    assert len(models(tmp_path)) == 5


PAIRS = [
    ("How many? Ten. Then", " it was one"),
    ("How many? Ten. Then", "!"),
    ("a", " it was one"),
    ("a", "!"),
    ("x" * 30, " it was one"),
    ("x" * 30, "!"),
    ("x" * 28 + "yz", " it was one"),
    ("x" * 28 + "yz", "!"),
]
"""Prompts of unlike lengths, two of which begin alike, with answers of unlike lengths."""


def scores(wrapped) -> torch.Tensor:
    lm = VirtualTokensLM(wrapped, make_tokenizer(), batch_size=5)
    return torch.tensor([score for score, _ in answered(lm, "loglikelihood", PAIRS)])


def log_likelihood(logits: torch.Tensor, answer: list[int]) -> float:
    log_probs = logits[-len(answer) :].log_softmax(-1)
    return sum(log_probs[i, token].item() for i, token in enumerate(answer))


@torch.no_grad()
def one_by_one(wrapped) -> torch.Tensor:
    """Scores of peft's own passes, without padding."""
    tokenizer = make_tokenizer()
    scores = []
    for prompt, answer in PAIRS:
        answer_ids = tokenizer.encode(answer)
        ids = torch.tensor([tokenizer.encode(prompt) + answer_ids[:-1]])
        logits = wrapped(input_ids=ids).logits[0]
        scores.append(log_likelihood(logits, answer_ids))
    return torch.tensor(scores)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("family", by_family(ZOO))
def test_every_family_scores_as_peft_does_or_is_refused(family, kind):
    is_refused = bool(refusal(small_config(family), kind))
    try:
        with with_adapter(small_model(family), kind, 5) as wrapped:
            batched = scores(wrapped)
            expected = one_by_one(wrapped)
    except (ValueError, RuntimeError, AttributeError):
        assert is_refused
    else:
        assert not is_refused
        assert batched == rounding.approx(expected)


@torch.no_grad()
def by_hand(model, virtual: torch.Tensor, kind: str, prompt: list[int], answer: list[int]) -> float:
    """The answer's log-likelihood in transformers' own pass with these virtual tokens."""
    ids = torch.tensor([prompt + answer[:-1]])
    if kind == "soft-prompt":
        inputs = torch.cat([virtual[None], model.get_input_embeddings()(ids)], dim=1)
        logits = model(inputs_embeds=inputs, use_cache=False).logits[0]
    else:
        cache = cache_of(model.config, virtual)
        positions = torch.arange(len(virtual), len(virtual) + ids.shape[1])[None]
        logits = model(ids, cache=cache, position_ids=positions).logits[0]
    return log_likelihood(logits, answer)


def cache_of(config, virtual: torch.Tensor) -> DynamicCache:
    """The keys and values of prefix tuning: `virtual` has those of all layers for each token."""
    cache = DynamicCache()
    layers = config.num_hidden_layers
    by_layer = virtual.reshape(len(virtual), layers, 2, config.num_key_value_heads, -1)
    for layer in range(layers):
        keys = by_layer[:, layer, 0].permute(1, 0, 2)[None]
        values = by_layer[:, layer, 1].permute(1, 0, 2)[None]
        cache.update(keys, values, layer)
    return cache


@pytest.mark.parametrize("kind", METHODS)
def test_the_base_is_restored(kind):
    model = small_model("mixtral")
    weights_before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def attributes() -> dict[str, Any]:
        return {
            "names": set(vars(model)),
            "config": model.config.to_dict(),
            "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
            "training": model.training,
        }

    attributes_before = attributes()
    with with_adapter(model, kind, 4) as wrapped:
        wrapped.train()
        wrapped.config.use_cache = False
        scores(wrapped)
    assert attributes() == attributes_before
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights_before[name]), name
    for name, module in model.named_modules():
        assert not module._forward_pre_hooks, name
        assert not module._forward_hooks, name


def test_another_seed_is_another_adapter():
    def virtual_tokens(seed: int) -> torch.Tensor:
        with with_adapter(small_model("olmoe"), "prefix-tuning", 4, seed) as wrapped:
            return wrapped.get_prompt_embedding_to_save("default")

    assert torch.equal(virtual_tokens(seed=0), virtual_tokens(seed=0))
    assert not torch.equal(virtual_tokens(seed=0), virtual_tokens(seed=1))


def train(folder, kind: str, *keys: str) -> int:
    """The command with six questions: three steps in each of two epochs."""
    few_questions = [
        "task=toy_choice",
        "limit=1",
        "baseline=false",
        "method.reference_size=6",
        "method.batch_size=2",
        "method.epochs=2",
    ]
    return main([f"method={kind}", *few_questions, *keys, f"output_dir={folder}"])


def log_of(folder) -> list[dict]:
    [log] = folder.glob("models/*/log.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", METHODS)
def test_the_loss_is_that_of_the_answers_tokens_alone(kind, tmp_path, monkeypatch):
    """With all questions in one batch, the first step's loss is the mean over all answer tokens."""
    rows = []
    init = MoeTrainer.__init__

    def init_and_record_rows(self, **options):
        rows.extend(options["train_dataset"].rows)
        init(self, **options)

    monkeypatch.setattr(MoeTrainer, "__init__", init_and_record_rows)
    assert train(tmp_path, kind, "method.batch_size=6") == 0

    exact = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float64)
    exact.set_experts_implementation("eager")
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    with with_adapter(model, kind, 20, seed=0) as wrapped:
        virtual = wrapped.get_prompt_embedding_to_save("default").double()
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    total_loss = 0.0
    tokens = 0
    for row in rows:
        answer = [label for label in row.labels if label >= 0]
        assert len(tokenizer.decode(answer).split()) == 1, "the answer alone"
        prompt = row.ids[: -len(answer)]
        total_loss -= by_hand(exact, virtual, kind, prompt, answer)
        tokens += len(answer)
    first_loss = log_of(tmp_path)[0]["loss"]
    assert first_loss == pytest.approx(total_loss / tokens, rel=1e-3)


def _killed_at_step_4(kind: str, folder) -> None:
    training_step = MoeTrainer.training_step

    def step_until_killed(self, *args, **options):
        if self.state.global_step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return training_step(self, *args, **options)

    MoeTrainer.training_step = step_until_killed
    train(folder, kind, "method.trainer.save_steps=1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", METHODS)
def test_a_killed_training_continues_to_the_same_adapter(kind, tmp_path, capsys):
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    assert train(whole, kind) == 0
    assert exit_code(_killed_at_step_4, kind, cut) == -signal.SIGKILL
    capsys.readouterr()
    assert train(cut, kind) == 0
    assert "training, continuing at step 4 of 6\n" in capsys.readouterr().err
    assert torch.equal(prompt_embeddings_in(cut), prompt_embeddings_in(whole))
    losses = [line["loss"] for line in log_of(whole)]
    assert [line["loss"] for line in log_of(cut)] == losses
    assert [line["step"] for line in log_of(cut)] == [1, 2, 3, 4, 5, 6]


def prompt_embeddings_in(folder: Path) -> torch.Tensor:
    [file] = folder.glob("models/*/adapter/adapter_model.safetensors")
    return load_file(file)["prompt_embeddings"]
