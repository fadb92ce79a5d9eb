"""The fields of transformers' GenerationConfig that the engine does not support."""

from __future__ import annotations

from transformers import GenerationConfig

_BEAMS, _ASSISTED, _CACHE = (
    "the engine decodes one sequence at a time, greedily or by sampling",
    "the engine computes every token itself",
    "the engine has a cache of its own",
)
_OUTPUT = "the engine returns token ids alone"
UNSUPPORTED = {
    **dict.fromkeys(
        ("num_beams", "num_beam_groups", "constraints", "force_words_ids", "penalty_alpha"), _BEAMS
    ),
    **dict.fromkeys(
        ("use_mtp", "prompt_lookup_num_tokens", "assistant_early_exit", "is_assistant"), _ASSISTED
    ),
    **dict.fromkeys(("cache_implementation", "cache_config", "max_cache_len"), _CACHE),
    **dict.fromkeys(
        (
            "return_dict_in_generate",
            "output_scores",
            "output_logits",
            "output_attentions",
            "output_hidden_states",
        ),
        _OUTPUT,
    ),
    "guidance_scale": "it would run the model without the engine for every token",
    "dola_layers": "it reads the logits of earlier layers",
    "token_healing": "it changes the prompt behind the engine",
}
"""Fields of transformers' GenerationConfig that the engine refuses, with the reason. It does what all others say."""
_COUNTED = ("num_beams", "num_beam_groups", "guidance_scale")
"""Those that 1 turns off."""


def unsupported(config: GenerationConfig) -> str | None:
    """What a configuration asks of the engine that it does not do, in a sentence; None: nothing."""
    for name, reason in UNSUPPORTED.items():
        value = getattr(config, name, None)
        if value and not (name in _COUNTED and value == 1):
            return f"{name}={value} is not supported: {reason}. Leave it out."
    return None
