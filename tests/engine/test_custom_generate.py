"""The engine as the decoding loop of `model.generate`: with one sample it generates what transformers generates.

Broken by: padding that is read, positions of padded prompts, an argument of `model.generate` that is dropped in silence.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from moe_lab import RoE
from tests.support.models import left_padded, make_model, small_model
from tests.support.tiers import by_family

PROMPTS = ["hello", "what is a cat and why", "abc" * 5]


def test_sampled_tokens_have_the_probabilities_of_the_model(olmoe, tokenizer):
    """4,000 answers of one token: each of the ten likeliest tokens within five standard errors (odds below 1e-5)."""
    draws, ids = 4000, tokenizer.encode("hello")
    sampled = olmoe.generate(
        torch.tensor([ids]), custom_generate=RoE(olmoe, tokenizer, n=1), do_sample=True, top_k=0,
        max_new_tokens=1, num_return_sequences=draws,
    )[:, -1]  # fmt: skip
    with torch.no_grad():
        probs = olmoe(torch.tensor([ids])).logits[0, -1].softmax(-1)
    for token in probs.topk(10).indices.tolist():
        p = float(probs[token])
        assert float((sampled == token).float().mean()) == pytest.approx(p, abs=5 * (p / draws) ** 0.5)


def test_what_is_not_supported_is_refused(olmoe, tokenizer):
    refused = {"num_beams": 2, "prompt_lookup_num_tokens": 2, "guidance_scale": 2, "output_attentions": True}
    for key, value in (refused | {"output_scores": True}).items():
        options = {key: value, "return_dict_in_generate": key in refused}
        with pytest.raises(ValueError, match=key):
            olmoe.generate(torch.tensor([[1, 2]]), custom_generate=RoE(olmoe, tokenizer, n=2), **options)


def test_a_streamer_takes_one_sequence(olmoe, tokenizer):
    put = []
    streamer = SimpleNamespace(put=lambda ids: put.extend(ids.flatten()), end=lambda: put.append("end"))
    asked = {"custom_generate": partial(RoE(olmoe, tokenizer, n=2), streamer=streamer), "max_new_tokens": 3}
    [ids] = olmoe.generate(torch.tensor([[1, 2]]), streamer=streamer, **asked)
    assert put == [*ids.tolist(), "end"]
    with pytest.raises(ValueError, match="A streamer takes one sequence, and 2 are"):
        olmoe.generate(torch.tensor([[1, 2], [3, 4]]), streamer=streamer, **asked)


@pytest.mark.parametrize("family", by_family(["olmoe", "gpt_oss", "qwen3_next"]))
def test_returned_scores_are_those_of_transformers(family, tokenizer):
    """Of one sample, before and after the logits processors; of sequences that end at different steps, too."""
    model, inputs = small_model(family), left_padded(tokenizer, PROMPTS)
    options = {"max_new_tokens": 8, "do_sample": False, "repetition_penalty": 1.3, "output_scores": True}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    free = model.generate(**inputs, **options)
    width = inputs["input_ids"].shape[1]
    options["eos_token_id"] = int(free.sequences[0, width + 2])  # ends the first sequence early
    plain = model.generate(**inputs, **options)
    one = model.generate(**inputs, custom_generate=RoE(model, tokenizer, n=1), **options)
    assert torch.equal(one.sequences, plain.sequences) and len(one.scores) == len(plain.scores)
    ended = [row[width:].tolist().index(options["eos_token_id"]) if options["eos_token_id"] in row[width:] else 99
             for row in plain.sequences]  # fmt: skip
    for field in ("scores", "logits"):
        for step, (mine, theirs) in enumerate(zip(one[field], plain[field], strict=True)):
            open_ = [row for row, last in enumerate(ended) if step <= last]
            torch.testing.assert_close(
                mine[open_].log_softmax(-1), theirs[open_].log_softmax(-1), atol=2e-4, rtol=1e-4
            )
    steps = model.compute_transition_scores(one.sequences, one.scores, normalize_logits=True)
    assert (steps[0, ended[0] + 1 :] == 0).all() and (steps[0, : ended[0] + 1] < 0).all()


def test_returned_scores_of_an_ensemble_add_up_to_its_log_likelihood(olmoe, tokenizer):
    roe = RoE(olmoe, tokenizer, n=4, temperature=1.0)
    letters = tokenizer.encode("abcdefghijklmnopqrstuvwxyz")  # a text of these has the same tokens again
    options = {"max_new_tokens": 5, "suppress_tokens": [each for each in range(300) if each not in letters]}
    found = roe.generate("hello", output_logits=True, return_dict_in_generate=True, **options)
    assert found.scores is None and found.texts == [roe.generate("hello", **options)]
    steps = olmoe.compute_transition_scores(found.sequences, found.logits, normalize_logits=True)
    whole = roe.loglikelihood("hello", found.texts[0])
    assert float(steps.sum()) == pytest.approx(whole, abs=1e-3)
    plain = RoE(olmoe, tokenizer, n=1).loglikelihood("hello", found.texts[0])
    assert abs(whole - plain) > 1e-2, "the ensemble is not the base model"


def test_padding_on_the_right_and_other_models_are_refused(olmoe, tokenizer):
    roe = RoE(olmoe, tokenizer, n=2)
    ids, mask = torch.tensor([[1, 2, 256], [3, 4, 5]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    with pytest.raises(ValueError, match="on the left"):
        olmoe.generate(ids, attention_mask=mask, custom_generate=roe, max_new_tokens=2)
    free = make_model("olmoe", eos_token_id=None, pad_token_id=None)
    with pytest.raises(ValueError, match="another model"):
        free.generate(ids, custom_generate=roe, max_new_tokens=2)
    asked = {"custom_generate": RoE(free, tokenizer, n=2), "max_new_tokens": 2}
    with pytest.raises(ValueError, match="different lengths need pad_token_id"):
        free.generate(ids, stopping_criteria=[lambda ids, *_, **__: ids[:, 0] == 1], **asked)
    cache = olmoe(ids[:, :1]).past_key_values
    with pytest.raises(ValueError, match="past_key_values"):
        olmoe.generate(ids, past_key_values=cache, custom_generate=roe, max_new_tokens=2)
