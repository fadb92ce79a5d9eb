"""A record has the decision for every token, in whatever passes it is read.

Broken by: decisions of another token, sequence or layer; padding that is counted.
"""

import pytest
import torch

from moe_lab import record
from tests.support.models import left_padded, small_model
from tests.support.tiers import by_family

PROMPTS = ["hello", "what is a cat and why"]


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_generated_tokens_have_the_decisions_of_one_pass(family, tokenizer):
    model, inputs, steps = small_model(family), left_padded(tokenizer, PROMPTS), 4
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 256, "max_new_tokens": steps}
    with record(model) as routes:
        ids = model.generate(**inputs, **options)[:, :-1]
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, steps), value=1)[:, :-1]
    with torch.no_grad(), record(model) as whole:
        model(ids, attention_mask=mask)
    assert len(routes.positions) == int(mask.sum()) == len(routes.indices[0])
    own, other = ((one.sequences * 1000 + one.positions).argsort() for one in (routes, whole))
    for layer in range(len(routes.indices)):
        assert torch.equal(routes.indices[layer][own], whole.indices[layer][other])
        torch.testing.assert_close(routes.weights[layer][own], whole.weights[layer][other], atol=1e-4, rtol=0)


def test_tokens_are_told_by_sequence_and_position(olmoe):
    """One by one, each token of each sequence has the decisions that it has in the record."""
    ids = torch.tensor([[256, 256, 7, 8], [1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad(), record(olmoe) as routes:
        olmoe(ids, attention_mask=mask)
        olmoe(torch.tensor([[9, 8]]))
    assert repr(routes) == "Record(4 MoE layers of 8 experts, 8 tokens)"
    assert routes.sequences.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert routes.positions.tolist() == [0, 1, 0, 1, 2, 3, 0, 1]
    for sequence, own in enumerate([[7, 8], [1, 2, 3, 4], [9, 8]]):
        with torch.no_grad(), record(olmoe) as alone:
            olmoe(torch.tensor([own]))
        at = routes.sequences == sequence
        for layer in range(4):
            assert torch.equal(routes.indices[layer][at], alone.indices[layer])
            torch.testing.assert_close(routes.logits[layer][at], alone.logits[layer], atol=1e-5, rtol=0)


def test_texts_of_a_packed_row_are_sequences(olmoe):
    """Broken by decisions of one text that another text of its row gets, since both have a token 0."""
    texts = [[5, 6, 7, 8], [9, 8, 7], [1, 2, 3, 4, 5, 6]]
    rows = [[*texts[0], *texts[1]], [*texts[2], 30]]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 5, 0]])
    packed = {"position_ids": positions, "use_cache": False}
    with torch.no_grad(), record(olmoe) as routes:
        olmoe(torch.tensor(rows), **packed)
        olmoe(torch.tensor([[3]]))
    assert routes.sequences.tolist() == [0] * 4 + [1] * 3 + [2] * 6 + [3, 4]
    assert routes.positions.tolist() == [*positions.flatten().tolist(), 0]
    with torch.no_grad(), record(olmoe) as alone:
        for ids in (*texts, [30], [3]):
            olmoe(torch.tensor([ids]))
    for layer in range(4):
        assert torch.equal(routes.indices[layer], alone.indices[layer])
