"""Options of an installed plug-in are found without --config-dir, and without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hydra.errors import MissingConfigException

from moe_lab.config.catalog import plugin_folders
from moe_lab.config.compose import compose, compose_cell
from tests.support.command import run_command


def install(folder: Path) -> None:
    """A package with an option, registered as pip registers it."""
    options = folder / "warmer" / "conf" / "method"
    options.mkdir(parents=True)
    (folder / "warmer" / "__init__.py").write_text("raise ImportError\n")
    (options / "warmer.yaml").write_text("# Warmer.\nname: warmer\ndegrees: 3\n")
    about = folder / "warmer-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: warmer\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[moe_lab.methods]\nwarmer = warmer:Warmer\n")


def test_an_installed_option_is_composed(tmp_path, monkeypatch):
    assert plugin_folders() == []
    with pytest.raises(MissingConfigException):
        compose(["method=warmer"])
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert plugin_folders() == [tmp_path / "warmer" / "conf"]
    (cell,) = compose(["method=warmer", "method.degrees=4"])
    assert cell.values["method"] == {"name": "warmer", "degrees": 4} and cell.config_dirs == []
    assert compose_cell(["method=warmer"], []).values["method"]["degrees"] == 3
    assert compose_cell(["method=warmer"], [str(tmp_path)]).values["method"]["degrees"] == 3
    assert "warmer" not in sys.modules


def test_a_registered_method_without_its_yaml_names_the_file(tmp_path, monkeypatch, capsys):
    """It was reported as unknown."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "warmer" / "conf" / "method" / "warmer.yaml"
    file.unlink()
    for argv in (["method=warmer"], ["--help", "method=warmer"]):
        ended = run_command(capsys, *argv)
        assert ended.code == 2 and len(ended.err.splitlines()) <= 3
        assert f"is registered by warmer 1.0 (warmer:Warmer), but its file {file} is missing" in ended.err
