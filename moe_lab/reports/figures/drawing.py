"""A drawing: a figure that is saved as PNG and SVG, with its numbers as CSV."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from moe_lab.reports.figures.fit import fit
from moe_lab.reports.figures.style import styled
from moe_lab.results.atomic import write_file, write_rows

DPI = 200
SVG_METADATA = {"Date": None, "Creator": None}
FORMATS: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": SVG_METADATA}
"""With the metadata that would differ from one drawing to the next."""


@dataclass(frozen=True)
class Drawing:
    """A figure: its numbers, and how they are drawn."""

    rows: Sequence[Mapping[str, object]]
    draw: Callable[[str], Figure]
    """The figure with a title."""
    title: str = ""
    """That of a figure outside of an experiment."""

    def save(self, folder: Path, stem: str, title: str | None = None) -> list[Path]:
        """Save the figure as `<stem>.png`, and as `.svg` for pages, and the rows as `<stem>.csv`.

        Returns the paths of PNG and CSV, none without rows. Raises ResultsError.
        """
        if not self.rows:
            return []
        csv_file = write_rows(self.rows, folder / f"{stem}.csv")
        with styled():
            figure = self.draw(self.title if title is None else title)
            fit(figure)
            for kind, metadata in FORMATS.items():
                write_file(folder / f"{stem}.{kind}", picture(figure, kind, metadata))
                # everything keeps its place, and is not placed again
                figure.set_layout_engine("none")
        return [folder / f"{stem}.png", csv_file]


def picture(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    """A figure as a file, with metadata in place of the format's own."""
    content = io.BytesIO()
    with styled():
        figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
    return content.getvalue()
