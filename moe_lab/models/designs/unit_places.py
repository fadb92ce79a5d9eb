"""Where units begin in token ids, by the tables that a model holds.

B = sequences, S = positions, V = vocabulary, C = kinds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moe_lab.models.designs.routers import Units
from moe_lab.models.designs.units import KINDS, SPECIAL, TRANSPARENT, UNSET, UnitTables


class UnitPlaces(nn.Module):
    """The tables of `units.py` as persistent buffers."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.register_buffer("kind_V", torch.full((vocab_size,), UNSET, dtype=torch.int8))
        self.register_buffer("begins_CV", torch.ones(KINDS, vocab_size, dtype=torch.bool))
        self._is_set = False

    def set(self, tables: UnitTables) -> None:
        """Take the tables of a tokenizer. Raises ValueError if its vocabulary is larger than the model's."""
        size, vocab_size = len(tables.kind_V), len(self.kind_V)
        if size > vocab_size:
            raise ValueError(
                f"The tokenizer has {size} tokens, and vocab_size={vocab_size} of the model is smaller."
            )
        self.kind_V.fill_(SPECIAL)[:size] = tables.kind_V.to(self.kind_V.device)
        self.begins_CV.fill_(True)[:, :size] = tables.begins_CV.to(self.begins_CV.device)

    def forward(self, ids_BS: Tensor, real_BS: Tensor, last_kind_B1: Tensor | None) -> Units:
        """
        Args:
            ids_BS: token ids of a pass.
            real_BS: bool; false: padding, behind which everything begins a unit.
            last_kind_B1: int64, the kind of the token in front of them; None: there is none.
        """
        self._require_set()
        own_BS = self.kind_V[ids_BS].long().masked_fill(~real_BS, SPECIAL)
        if last_kind_B1 is None:
            last_kind_B1 = torch.full_like(own_BS[:, :1], SPECIAL)
        kind_BR = torch.cat([last_kind_B1, own_BS], dim=1)
        kind_BR = kind_BR.gather(1, _latest(kind_BR != TRANSPARENT))
        begins_BS = self.begins_CV[kind_BR[:, :-1], ids_BS]
        return Units(_latest(begins_BS), kind_BR[:, 1:], ids_BS)

    def _require_set(self) -> None:
        """Raise ValueError if there are no tables. Looked up once: reading a tensor stops a GPU."""
        if not self._is_set and bool((self.kind_V == UNSET).any()):
            raise ValueError(
                "This model routes words or sentences and was not told where they begin. "
                "Call model.set_units(unit_tables(tokenizer, model.config.router))."
            )
        self._is_set = True


def _latest(where_BS: Tensor) -> Tensor:
    """int64 [B, S]: the latest position up to each one where it is true; -1: none."""
    position_S = torch.arange(where_BS.shape[1], device=where_BS.device)
    return torch.where(where_BS, position_S, -1).cummax(dim=1).values
