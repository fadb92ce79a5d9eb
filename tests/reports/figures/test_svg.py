"""Figures as SVG. Broken by a colour that stays light in the dark, a text on a heatmap that does not, a file that changes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

from moe_lab.reports.figures.primitives import panels
from moe_lab.reports.figures.style import (
    COLOURS,
    DARK,
    DARK_INK,
    GREEN,
    GREY,
    LIGHT_INK,
    RC,
    svg_of,
)

SERIES = {colour.lower() for colour in COLOURS} | {DARK_INK.lower(), LIGHT_INK.lower()}
"""Light enough on both grounds, or on the colours of a map."""


def drawn():
    with matplotlib.rc_context(RC):
        figure, (curve, map_) = panels(2)
        curve.plot([0, 1], [0.0, 1.0], "o-", color=GREEN, mfc="white", label="a <b> & c")
        curve.axhline(0.5, color=GREY, ls=":", label="base")
        curve.legend()
        map_.set_facecolor("#DDDDDD")
        map_.imshow([[0.0, 1.0]], interpolation="none")
        map_.text(0, 0, "0.00", color=LIGHT_INK)
        figure.colorbar(map_.images[0], ax=map_, ticks=[])
        return svg_of(figure)


def test_a_figure_is_the_same_file_each_time_and_text_is_text():
    text = drawn()
    assert text == drawn()
    words = {element.text for element in ElementTree.fromstring(text).iter() if element.tag.endswith("text")}
    assert {"a <b> & c", "base", "0.00"} <= words
    assert "http" not in re.sub(r'(xmlns(:\w+)?|rdf:\w+)="[^"]*"|<!DOCTYPE[^>]*>', "", text), (
        "asks for nothing"
    )


def test_every_colour_has_a_dark_one_or_is_legible_on_both_grounds():
    text = drawn()
    drawing = text.partition("<style>\n@media")[0]
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawing))
    assert used <= set(DARK) | SERIES and "#ffffff" in used
    for light, dark in DARK.items():
        assert f'[style*="fill: {light}"] {{ fill: {dark} !important; }}' in text
    assert text.count("prefers-color-scheme: dark") == 1


@pytest.mark.parametrize("colour", [*COLOURS, "#767676"])
def test_curves_are_seen_in_the_dark(colour):
    dark = DARK.get(colour.lower(), colour)
    assert contrast(DARK["#ffffff"], dark) >= 3
    assert contrast(DARK["#ffffff"], DARK["#000000"]) >= 4.5 <= contrast(DARK["#ffffff"], DARK["#767676"])


def contrast(one: str, other: str) -> float:
    lights = sorted(map(luminance, (one, other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    parts = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
        for part in matplotlib.colors.to_rgb(colour)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
