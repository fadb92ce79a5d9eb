"""Small judge models with random weights in local folders, and what they say
by a slow direct computation."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.support.families import VOCAB
from tests.support.models import make_model, make_tokenizer

GUARD_TEMPLATE = (
    "{{ bos_token }}Is the last answer safe?\n"
    "{% for message in messages %}{{ message['role'] | upper }}: "
    "{{ message['content'] | trim }}\n{% endfor %}Verdict:"
)
PARTS_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}"
    "{{ part['text'] | trim }}\n{% endif %}{% endfor %}{% endfor %}Verdict:"
)


def reward_folder(
    folder: Path, labels: int = 1, seed: int = 0, template: str | None = None
) -> Path:
    """A random Llama with a classifier head; its tokenizer has no padding token."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 128}
    config = make_model("llama", **sizes, num_labels=labels, pad_token_id=None).config
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    model.save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    return folder


def reward_directly(folder: Path, prompt: str, answer: str) -> float:
    """One exchange at a time, no padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    model.config.pad_token_id = 299  # occurs in no text, so that the last token is the last one
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    else:
        text = f"\n\nHuman: {prompt}\n\nAssistant: {answer}"
    ids = tokenizer(text, add_special_tokens=False).input_ids[:128]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    return float(logits[0]) if len(logits) == 1 else float(torch.softmax(logits, 0)[1])


def guard_folder(
    folder: Path, template: str | None = GUARD_TEMPLATE, seed: int = 5, verdicts: bool = True
) -> Path:
    """A random Llama; with `verdicts` it writes its own tokens "unsafe" or "safe", and ends."""
    model = make_model(
        "llama", seed=seed, hidden_size=32, num_hidden_layers=2, tie_word_embeddings=False
    )
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["unsafe", "safe"])
    assert len(tokenizer) <= VOCAB
    if verdicts:
        unsafe, safe = tokenizer.convert_tokens_to_ids(["unsafe", "safe"])
        with torch.no_grad():
            for layer in model.model.layers:  # what was read matters more than the last token
                layer.self_attn.v_proj.weight *= 8
            direction = model.lm_head.weight[unsafe].clone()
            model.lm_head.weight[:] = 0
            model.lm_head.weight[unsafe], model.lm_head.weight[safe] = direction, -direction
        model.generation_config.eos_token_id = [unsafe, safe]
    tokenizer.chat_template = template
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def guard_directly(folder: Path, prompt: str, answer: str) -> str:
    """The first token that is written."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = (
        f"{tokenizer.bos_token}Is the last answer safe?\nUSER: {prompt.strip()}\n"
        f"ASSISTANT: {answer.strip()}\nVerdict:"
    )
    ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
    with torch.no_grad():
        return tokenizer.decode([int(model(ids).logits[0, -1].argmax())]).strip()
