"""A replay routes every token as it was recorded, in whatever passes it is read.

Broken by: decisions of another token, sequence or layer; padding that is counted.
"""

import copy
import re

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
    options |= {"output_logits": True, "return_dict_in_generate": True}
    with routed(model, shuffled), record(model) as routes:
        out = model.generate(**inputs, max_new_tokens=steps, **options)
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
    for ids, says in (([[1, 2, 3, 4]], "token 3 of sequence 0"), ([[1, 2], [3, 4]], "token 0 of sequence 1")):
        with pytest.raises(RoutingError, match=says), torch.no_grad(), replay(olmoe, routes):
            olmoe(torch.tensor(ids))
    with pytest.raises(RoutingError, match="has 4 MoE layers"), replay(make_model("qwen2_moe"), routes):
        pass
    other = make_model("olmoe", num_experts=6)
    with pytest.raises(RoutingError, match="has 8 experts, and .* has 6"), replay(other, routes):
        other(torch.tensor([[1, 2]]))
    other = make_model("olmoe", num_experts_per_tok=3)
    with pytest.raises(RoutingError, match="2 experts per token"), replay(other, routes):
        other(torch.tensor([[1, 2]]))


def test_texts_of_a_packed_row_are_sequences(olmoe):
    """Broken by decisions of one text that another text of its row gets, since both have a token 0."""
    texts = [[5, 6, 7, 8], [9, 8, 7], [1, 2, 3, 4, 5, 6]]
    rows = [[*texts[0], *texts[1]], [*texts[2], 30]]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 5, 0]])
    packed = {"position_ids": positions, "use_cache": False}
    with torch.no_grad(), record(olmoe) as routes:
        logits = olmoe(torch.tensor(rows), **packed).logits
        olmoe(torch.tensor([[3]]))
    assert routes.sequences.tolist() == [0] * 4 + [1] * 3 + [2] * 6 + [3, 4]
    assert routes.positions.tolist() == [*positions.flatten().tolist(), 0]
    with torch.no_grad(), record(olmoe) as alone:
        for ids in (*texts, [30], [3]):
            olmoe(torch.tensor([ids]))
    for layer in range(4):
        assert torch.equal(routes.indices[layer], alone.indices[layer])
    with torch.no_grad(), replay(olmoe, alone):
        torch.testing.assert_close(olmoe(torch.tensor(rows), **packed).logits, logits, atol=1e-5, rtol=0)


def objective(model, ids, direction):
    """A smooth function of the logits."""
    return (model(ids).logits.double().log_softmax(-1) * direction).mean()


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_recorded_experts_with_weights_of_the_model_have_gradients(family):
    """The directional derivative of all router parameters, against central differences."""
    model, ids = copy.deepcopy(small_model(family)), torch.arange(12).view(2, 6)
    torch.manual_seed(0)
    with torch.no_grad():
        with record(model) as routes:
            model(ids)
        for own in model.parameters():  # another model, which would choose other experts
            own += 0.1 * own.std() * torch.randn_like(own)
    routers = [
        own for name, own in model.named_parameters() if re.search(r"(gate|router)\.(weight|bias)$", name)
    ]
    direction = torch.randn(*ids.shape, model.config.vocab_size, dtype=torch.float64)
    moves = [torch.randn_like(own) for own in routers]
    with replay(model, routes, weights="model"):
        slope = torch.autograd.grad(objective(model, ids, direction), routers)
    found = sum(float((one * move).sum()) for one, move in zip(slope, moves, strict=True))
    step, values = 2e-3, []
    for sign in (1, -1):
        with torch.no_grad():
            for own, move in zip(routers, moves, strict=True):
                own += sign * step * move
            with replay(model, routes, weights="model"), record(model) as seen:
                values.append(float(objective(model, ids, direction)))
            for own, move in zip(routers, moves, strict=True):
                own -= sign * step * move
        assert all(torch.equal(*pair) for pair in zip(seen.indices, routes.indices, strict=True))
    assert found == pytest.approx((values[0] - values[1]) / (2 * step), rel=0.02)
    assert abs(found) > 1e-4
    with replay(model, routes):
        value = objective(model, ids, direction)
    assert not any(one.any() for one in torch.autograd.grad(value, routers))


def test_fresh_weights_of_the_recorded_model_are_the_recorded_ones(olmoe):
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        with record(olmoe) as routes:
            expected = olmoe(ids).logits
        with replay(olmoe, routes, weights="model"):
            torch.testing.assert_close(olmoe(ids).logits, expected, atol=1e-5, rtol=0)
