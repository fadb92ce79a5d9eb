"""Models of other families than the embedded one, with small random weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

END = "<end>"
SIZES: dict[str, Any] = {
    "vocab_size": 257,
    "max_position_embeddings": 512,
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "bos_token_id": 256,
    "eos_token_id": 256,
    "pad_token_id": 256,
    "initializer_range": 0.2,
}
LATENT_ATTENTION: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen3_moe": {"head_dim": 8},
    "deepseek_v2": LATENT_ATTENTION,
}


def write_models(folder: Path) -> None:
    """A folder with weights and a tokenizer for each family."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for family, own_sizes in FAMILIES.items():
        config = AutoConfig.for_model(family, **(SIZES | own_sizes))
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(folder / family)
        _byte_tokenizer().save_pretrained(folder / family)


def _byte_tokenizer() -> Any:
    """One token for each byte, and one that ends a text."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))
    }
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


if __name__ == "__main__":
    write_models(Path(sys.argv[1]))
