"""A replay routes every token as it was recorded, in whatever passes it is read.

Broken by: decisions of another token, sequence or layer; padding that is counted.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab import record, replay
from moe_lab.errors import RoutingError
from moe_lab.routing import routed
from tests.support.models import left_padded, make_model, small_model
from tests.support.tiers import by_family

PROMPTS = ["hello", "what is a cat and why"]


def shuffled(router, routing):
    """Other experts for every token, by its logits."""
    return routing._replace(index_TK=(routing.index_TK + 1 + router.layer) % routing.logits_TE.shape[-1])


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_generated_tokens_are_replayed_in_one_pass(family, tokenizer):
    model, inputs = small_model(family), left_padded(tokenizer, PROMPTS)
    steps, options = 4, {"do_sample": False, "eos_token_id": None, "pad_token_id": 256}
    logits = []
    with routed(model, shuffled), record(model) as routes:
        out = model.generate(
            **inputs, max_new_tokens=steps, output_logits=True, return_dict_in_generate=True, **options
        )
        logits = torch.stack(out.logits, dim=1)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, steps), value=1)[:, :-1]
    assert len(routes.positions) == int(mask.sum()) == len(routes.indices[0])
    width = inputs["input_ids"].shape[1]
    with torch.no_grad():
        with replay(model, routes):
            again = model(out.sequences[:, :-1], attention_mask=mask).logits[:, width - 1 :]
        plain = model(out.sequences[:, :-1], attention_mask=mask).logits[:, width - 1 :]
    torch.testing.assert_close(again, logits, atol=1e-4, rtol=0)
    assert (plain - logits).abs().max() > 1e-2


def test_tokens_are_told_by_sequence_and_position(olmoe):
    """One by one, each token of each sequence has the decisions that it has in the record."""
    ids = torch.tensor([[256, 256, 7, 8], [1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad(), record(olmoe) as routes:
        olmoe(ids, attention_mask=mask)
        olmoe(torch.tensor([[9, 8]]))
    assert routes.sequences.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert routes.positions.tolist() == [0, 1, 0, 1, 2, 3, 0, 1]
    for sequence, own in enumerate([[7, 8], [1, 2, 3, 4], [9, 8]]):
        with torch.no_grad(), record(olmoe) as alone:
            olmoe(torch.tensor([own]))
        at = routes.sequences == sequence
        for layer in range(4):
            assert torch.equal(routes.indices[layer][at], alone.indices[layer])
            torch.testing.assert_close(routes.logits[layer][at], alone.logits[layer], atol=1e-5, rtol=0)


def test_another_model_is_routed_by_the_record(olmoe):
    ids, other = torch.tensor([[5, 6, 7, 8]]), make_model("olmoe", seed=1)
    with torch.no_grad():
        with record(olmoe) as routes:
            olmoe(ids)
        with replay(other, routes), record(other) as replayed:
            other(ids[:, :3])
    for layer in range(4):
        assert torch.equal(replayed.indices[layer], routes.indices[layer][:3])
        assert torch.equal(replayed.weights[layer], routes.weights[layer][:3])


def test_tokens_that_were_not_recorded_are_refused(olmoe):
    with torch.no_grad(), record(olmoe) as routes:
        olmoe(torch.tensor([[1, 2, 3]]))
    for ids, says in (
        ([[1, 2, 3, 4]], "token 3 of sequence 0"),
        ([[1, 2], [3, 4]], "token 0 of sequence 1"),
    ):
        with pytest.raises(RoutingError, match=says), torch.no_grad(), replay(olmoe, routes):
            olmoe(torch.tensor(ids))
    with pytest.raises(RoutingError, match="has 4 MoE layers"), replay(make_model("qwen2_moe"), routes):
        pass
    other = make_model("olmoe", num_experts_per_tok=3)
    with pytest.raises(RoutingError, match="2 experts per token"), replay(other, routes):
        other(torch.tensor([[1, 2]]))
