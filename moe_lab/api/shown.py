"""What a notebook and a terminal show of an object: a table, and lines below it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import escape

from moe_lab.config.terminal import shown
from moe_lab.reports.columns import Column, split_title, table_text


class Shown(ABC):
    """An object that is shown as a table."""

    @abstractmethod
    def _columns(self) -> tuple[list[Column], list[str]]:
        """The columns, and the lines below."""

    def __repr__(self) -> str:
        columns, lines = self._columns()
        return shown("\n".join([table_text("", columns).strip("\n"), *lines]).lstrip())

    def _repr_html_(self) -> str:
        import pandas as pd

        columns, lines = self._columns()
        title, kept = split_title(columns)
        rows = list(zip(*(column.cells for column in kept), strict=True))
        table = pd.DataFrame(rows, columns=[column.heading for column in kept]).to_html(index=False)
        below = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return f"<p>{escape(' '.join(title))}</p>{table}{below}"
