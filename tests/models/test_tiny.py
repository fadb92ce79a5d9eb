"""Breaks when the shipped checkpoint is too large, of another shape, has dead experts, or no longer fits the world."""

import json

import pytest

from moe_lab.models.source import TINY
from moe_lab.tasks.toy.questions import questions
from moe_lab.tasks.toy.stories import stories
from moe_lab.tasks.toy.word_problems import word_problems


@pytest.fixture(scope="module")
def tiny():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(
        TINY, dtype=torch.float32
    ).eval(), AutoTokenizer.from_pretrained(TINY)


def test_files_are_a_plain_model_with_a_card_and_of_at_most_12_mb():
    names = {path.name for path in TINY.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    } <= names
    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 12e6


def test_architecture_is_what_the_methods_need(tiny):
    model, tokenizer = tiny
    config = model.config
    assert config.model_type == "olmoe"
    assert config.num_hidden_layers >= 6 and config.num_experts >= 16 and config.num_experts_per_tok >= 4
    assert config.max_position_embeddings >= 2048 and config.vocab_size == len(tokenizer)
    assert config.output_router_logits is False
    assert json.loads((TINY / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.slow
def test_every_expert_is_used_on_held_out_documents(tiny):
    """Some 7,000 tokens: each expert of each layer is chosen, and choices spread: 4 bits would be even, 2 four experts."""
    import torch

    model, tokenizer = tiny
    texts = [row["text"] for row in stories("test", 40)]
    texts += [f"Question: {row['question']}\nAnswer: {row['answer']}" for row in word_problems("test", 40)]
    counts = torch.zeros(model.config.num_hidden_layers, model.config.num_experts)
    for text in texts:
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt"), output_router_logits=True).router_logits
        for layer, of_layer in enumerate(logits):
            chosen = of_layer.topk(model.config.num_experts_per_tok).indices.flatten()
            counts[layer] += chosen.bincount(minlength=model.config.num_experts)
    assert counts.min() >= 1
    share = counts / counts.sum(1, keepdim=True)
    assert -(share * share.log2()).sum(1).min() > 3.2


@pytest.mark.slow
def test_questions_are_answered_neither_by_chance_nor_perfectly(tiny):
    """300 of 500 test questions: chance is 25%, the band of the whole set 30% to 75%."""
    import torch

    model, tokenizer = tiny
    right = 0
    for row in questions("test", 500)[:300]:
        ids = tokenizer(f"Question: {row['question']}\nAnswer:", return_tensors="pt").input_ids
        with torch.no_grad():
            scores = model(ids).logits[0, -1]
        answers = [tokenizer(" " + choice).input_ids[0] for choice in row["choices"]]
        right += int(scores[answers].argmax()) == row["answer"]
    assert 0.30 <= right / 300 <= 0.75


@pytest.mark.slow
def test_problems_are_solved_neither_never_nor_always(tiny):
    import torch

    model, tokenizer = tiny
    tokenizer.padding_side = "left"
    rows = word_problems("test", 100)
    prompts = [f"Question: {row['question']}\nAnswer:" for row in rows]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.no_grad():
        made = model.generate(**inputs, max_new_tokens=96, do_sample=False)[:, inputs.input_ids.shape[1] :]
    replies = [reply.split("\n\n")[0] for reply in tokenizer.batch_decode(made, skip_special_tokens=True)]
    right = sum(
        reply.strip().split("#### ")[-1] == row["answer"].split("#### ")[-1]
        for reply, row in zip(replies, rows, strict=True)
    )
    assert 0.30 <= right / len(rows) <= 0.75
