"""Where units begin, against one token after the other.

Broken by: a kind of the wrong neighbour, transparent tokens in a row, padding within a unit, a part that forgets.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab.models.designs.unit_places import UnitPlaces
from moe_lab.models.designs.units import SPECIAL, UnitTables
from tests.support.designs import VOCAB, arbitrary_units, unit_starts

IDS = torch.randint(0, VOCAB, (20, 30), generator=torch.Generator().manual_seed(4))


def places(vocab_size: int = VOCAB) -> UnitPlaces:
    made = UnitPlaces(vocab_size)
    made.set(arbitrary_units())
    return made


def test_units_begin_where_the_loop_says():
    units = places()(IDS, torch.ones_like(IDS, dtype=torch.bool), None)
    expected = [unit_starts(arbitrary_units(), row.tolist()) for row in IDS]
    assert units.first_BS.tolist() == expected
    assert 3 < sum(len(set(row)) for row in expected) / 20 < 20


@pytest.mark.parametrize("cut", [1, 7, 29])
def test_a_pass_goes_on_from_the_kind_of_the_last_token(cut):
    real, whole = torch.ones_like(IDS, dtype=torch.bool), places()
    first = whole(IDS[:, :cut], real[:, :cut], None)
    second = whole(IDS[:, cut:], real[:, cut:], first.kind_BS[:, -1:])
    expected = whole(IDS, real, None)
    torch.testing.assert_close(torch.cat([first.kind_BS, second.kind_BS], dim=1), expected.kind_BS)
    rest = expected.first_BS[:, cut:] - cut
    assert second.first_BS.equal(rest.clamp(min=-1)) and (rest < 0).any()


def test_padding_is_no_part_of_a_unit_whatever_its_token():
    real = torch.ones_like(IDS, dtype=torch.bool)
    real[:, :4] = False
    units, alone = places()(IDS, real, None), places()(IDS[:, 4:], real[:, 4:], None)
    assert units.first_BS[:, :4].tolist() == [[0, 1, 2, 3]] * 20
    assert units.first_BS[:, 4:].equal(alone.first_BS + 4)


def test_tokens_that_the_tokenizer_lacks_are_special_and_no_tokenizer_may_be_larger():
    larger = places(VOCAB + 5)
    assert (larger.kind_V[VOCAB:] == SPECIAL).all() and larger.begins_CV[:, VOCAB:].all()
    with pytest.raises(ValueError, match="The tokenizer has 300 tokens, and vocab_size=299"):
        places(VOCAB - 1)


def test_tables_are_buffers_that_stay_whole_numbers():
    module = places().to(torch.bfloat16)
    assert module.kind_V.dtype == torch.int8 and module.begins_CV.dtype == torch.bool
    again = UnitPlaces(VOCAB)
    again.load_state_dict(module.state_dict())
    assert UnitTables(again.kind_V, again.begins_CV).kind_V.equal(arbitrary_units().kind_V)
    assert again(IDS, torch.ones_like(IDS, dtype=torch.bool), None).first_BS.any()
