"""A drawn figure as SVG that follows the system's dark mode.

matplotlib writes the light colours into each element, which every viewer understands. One style element after them
replaces, where the screen is dark, those of DARK. Colours that it does not name are those of a colour map, or stand on
one (`style.py: DARK_INK`, `LIGHT_INK`), and stay.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RC = {"svg.fonttype": "none", "svg.hashsalt": "moe_lab"}
"""Text stays text, and the same figure is the same file."""
DARK = {
    "#ffffff": "#16181a",
    "#000000": "#e5e6e3",
    "#767676": "#a3a9ae",
    "#e0e0e0": "#3a3f44",
    "#dddddd": "#3a3f44",
    "#0072b2": "#4a9fdc",
}
"""What dark pages have in place of a light colour: ground, text, grey, grid, missing cells, and the darkest series."""
END = "</svg>"


def svg_of(figure: Figure) -> str:
    """The figure as the text of an SVG file."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context(RC):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue().rstrip()
    assert text.endswith(END)
    return f"{text.removesuffix(END)}<style>\n{_style()}\n</style>\n{END}\n"


def _style() -> str:
    """The rules of the dark colours. matplotlib writes no fill where it is black."""
    rules = [
        f'[style*="{part}: {light}"] {{ {part}: {dark} !important; }}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    ]
    black = f'text:not([style*="fill"]) {{ fill: {DARK["#000000"]}; }}'
    return "\n".join(["@media screen and (prefers-color-scheme: dark) {", black, *rules, "}"])
