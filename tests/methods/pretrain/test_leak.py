"""The leak of a model that is not causal. Broken by: short prefixes that are counted as information from later tokens, true
later tokens where another row's are meant, a mean over something else than rows, a causal model with a leak.
"""

from __future__ import annotations

import math

import pytest
import torch

from moe_lab.methods.pretrain import leak as module
from moe_lab.methods.pretrain.leak import leak
from tests.support.models import make_model
from tests.support.pretrainings import rows
from tests.support.routed_designs import made


class Seer(torch.nn.Module):
    """Each position is sure of the next token of the row where there is one; at the end of a row all are alike."""

    device = torch.device("cpu")
    computed = 0
    """Logits of positions."""

    def forward(self, input_ids, logits_to_keep=0):
        from types import SimpleNamespace

        logits = torch.zeros(*input_ids.shape, 300)
        later = input_ids[:, 1:]
        logits[:, :-1].scatter_(2, later[..., None], 4.0)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        self.computed += logits[:, kept].shape[1]
        return SimpleNamespace(logits=logits[:, kept])


def test_a_seer_knows_by_later_tokens_alone():
    """It is misled by another row's tokens, and guesses without any: the effect of short prefixes has the other sign."""
    held_out = rows(40, 9)
    told = leak(Seer(), held_out)
    seen, misled = math.log(math.exp(4) + 299) - 4, math.log(math.exp(4) + 299)
    assert told["rows"] == 32, "of forty"
    assert told["positions"] == 8
    assert told["loss_with_later_tokens"] == pytest.approx(seen, abs=1e-5)
    assert seen < told["loss_with_another_rows"] <= misled + 1e-5
    assert told["loss_without"] == pytest.approx(math.log(300), abs=1e-5)
    later, short = told["later_tokens"]["difference"], told["short_prefixes"]["difference"]
    assert later > 3 and short < 0
    assert later + short == pytest.approx(told["difference"]) == pytest.approx(math.log(300) - seen, abs=1e-5)


def slowly(model, held_out, position):
    """The three losses of one row's target at `position`, each by a pass of its own."""
    row, other = (torch.from_numpy(ids).long() for ids in held_out)
    mixed = torch.cat([row[:position], other[position:]])
    with torch.no_grad():
        logits = [model(input_ids=ids[None]).logits[0, position - 1] for ids in (row, mixed, row[:position])]
    return [torch.nn.functional.cross_entropy(each, row[position]).item() for each in logits]


def test_its_parts_are_those_of_passes_over_each_row_alone():
    held_out = rows(3, 9, seed=5)
    model = made("expert")
    told = leak(model, held_out)
    losses = torch.tensor(
        [
            [slowly(model, (held_out[r], held_out[(r + 1) % 3]), position) for position in range(1, 9)]
            for r in range(3)
        ]
    )
    whole, replaced, short = losses.mean((0, 1)).tolist()
    assert (told["rows"], told["positions"]) == (3, 8)
    assert told["loss_with_later_tokens"] == pytest.approx(whole, abs=1e-5)
    assert told["loss_with_another_rows"] == pytest.approx(replaced, abs=1e-5)
    assert told["loss_without"] == pytest.approx(short, abs=1e-5)
    assert told["later_tokens"]["difference"] == pytest.approx(replaced - whole, abs=1e-5)
    assert told["short_prefixes"]["difference"] == pytest.approx(short - replaced, abs=1e-5)
    for part in (told, told["later_tokens"], told["short_prefixes"]):
        low, high = part["ci95"]
        assert low <= part["difference"] <= high


def test_long_rows_are_measured_at_evenly_spaced_targets(monkeypatch):
    monkeypatch.setattr(module, "POSITIONS", 4)
    held_out = rows(2, 20, seed=2)
    model = made("expert")
    told = leak(model, held_out)
    losses = torch.tensor(
        [
            [slowly(model, (held_out[r], held_out[1 - r]), position) for position in (1, 7, 13, 19)]
            for r in range(2)
        ]
    )
    assert told["positions"] == 4
    assert told["loss_with_another_rows"] == pytest.approx(losses[..., 1].mean().item(), abs=1e-5)


def test_a_causal_model_has_none():
    held_out = rows(2, 9)
    model = make_model("olmoe").train()
    told = leak(model, held_out)
    assert told["rows"] == 2 and not model.training
    for part in (told, told["later_tokens"], told["short_prefixes"]):
        assert abs(part["difference"]) < 1e-5
    ids = torch.from_numpy(held_out).long()
    with torch.no_grad():
        expected = model(ids, labels=ids).loss.item()
    assert told["loss_without"] == pytest.approx(expected, abs=1e-5)


def test_logits_of_one_position_of_a_pass_are_computed():
    seer = Seer()
    leak(seer, rows(6, 9))
    assert seer.computed == 8 + 8 + 8, "one for each target and pass: all would fill a memory"
