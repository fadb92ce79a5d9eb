"""The model and the tokenizer that all speed claims are measured with: weights do not matter,
shapes do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import OlmoeConfig, OlmoeForCausalLM, PreTrainedTokenizerFast

VOCAB = 8192


def make_model() -> OlmoeForCausalLM:
    """OLMoE with 8 layers, hidden 512, expert width 256, 8 heads, 32 experts top-4; float32,
    normal(0, 0.03)."""
    config = OlmoeConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=256,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        num_experts=32,
        num_experts_per_tok=4,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = OlmoeForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.03, generator=generator)
    model.set_experts_implementation("grouped_mm")
    return model


def make_tokenizer(files: list[Path]) -> Any:
    """Byte-level BPE with 8192 tokens, trained on the benchmark's own text, so that prompts have
    usual lengths."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(file) for file in files], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>", pad_token="<|end|>"
    )
