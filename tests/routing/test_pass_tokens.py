"""Sequences and positions of a pass follow from its inputs: mask, positions or cache."""

from __future__ import annotations

import torch

from moe_lab.routing.pass_tokens import pass_tokens

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def seen(model, *passes):
    found = []
    with torch.no_grad(), pass_tokens(model, found.append):
        for arguments in passes:
            model(**arguments)
    return [(t.real_T.tolist(), t.sequence_T.tolist(), t.position_T.tolist()) for t in found]


def test_from_a_mask_with_padding(olmoe):
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]])
    ((real, sequence, position),) = seen(olmoe, {"input_ids": IDS, "attention_mask": mask})
    assert real == [False, True, True, True, True, False] and sequence == [0, 0, 0, 1, 1, 1]
    assert [p for p, r in zip(position, real, strict=True) if r] == [0, 1, 0, 1]


def test_from_a_cache_and_from_positions(olmoe):
    with torch.no_grad():
        cache = olmoe(IDS).past_key_values
    first = {"input_ids": IDS}
    step = {"input_ids": IDS[:, :1], "past_key_values": cache}
    given = {"inputs_embeds": olmoe.get_input_embeddings()(IDS), "position_ids": torch.tensor([[4, 5, 6]])}
    found = seen(olmoe, first, step, given)
    assert [sequence for _, sequence, _ in found] == [[0, 0, 0, 1, 1, 1], [0, 1], [2, 2, 2, 3, 3, 3]]
    assert [position for _, _, position in found] == [[0, 1, 2] * 2, [3, 3], [4, 5, 6] * 2]
