"""What a notebook and a terminal show of an object: a table of texts, and lines below it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import escape
from typing import TYPE_CHECKING, Any

from moe_lab.config.terminal import shown

if TYPE_CHECKING:
    import pandas as pd


class Shown(ABC):
    """An object that is shown as a table."""

    @abstractmethod
    def _shown(self) -> tuple[dict[str, list[str]], list[str]]:
        """Columns of texts, and lines. Empty columns are not shown."""

    def _table(self) -> tuple[pd.DataFrame, list[str]]:
        import pandas as pd

        columns, lines = self._shown()
        return pd.DataFrame({name: cells for name, cells in columns.items() if any(cells)}), lines

    def __repr__(self) -> str:
        table, lines = self._table()
        return shown("\n".join([table.to_string(index=False), *lines]))

    def _repr_html_(self) -> str:
        table, lines = self._table()
        return table.to_html(index=False) + "".join(f"<p>{escape(line)}</p>" for line in lines)


def given(value: Any) -> bool:
    """Whether it is no missing value."""
    import pandas as pd

    return isinstance(value, list | dict) or not pd.isna(value)


def text(value: Any) -> str:
    """A cell; empty for a missing value."""
    if not given(value):
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
