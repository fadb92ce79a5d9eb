"""Methods of other packages. Broken by a stored result that is returned after the plug-in's code changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import invalidate_caches
from pathlib import Path

import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.source import source_digest
from moe_lab.runs.prepare import prepare

CODE = """
from moe_lab.methods.base import Base
from lab_plugin.scale import SCALE

class Halved(Base):
    pass
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package whose method is `halved`."""
    package = tmp_path / "lab_plugin"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "scale.py").write_text("SCALE = 0.5\n")
    (package / "deep" / "rest.py").write_text("REST = 1\n")
    (package / "halved.py").write_text(CODE)
    about = tmp_path / "lab_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[moe_lab.methods]\nhalved = lab_plugin.halved:Halved\n")
    monkeypatch.syspath_prepend(tmp_path)
    return package


@pytest.fixture
def fresh() -> Callable[[], None]:
    """Forgets the plug-in, as another process would not know it."""

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "lab_plugin"]:
            del sys.modules[name]
        invalidate_caches()
        source_digest.cache_clear()

    return forget


@pytest.mark.parametrize("changed", ["halved.py", "scale.py", "deep/rest.py"])
def test_any_change_of_a_plug_ins_source_is_another_run(
    plugin: Path, fresh: Callable[[], None], tmp_path: Path, changed: str
) -> None:
    def run_id() -> str:
        fresh()
        method = get_method("halved").Config(name="halved")
        return prepare(Config(method=method, output_dir=str(tmp_path / "out"), limit=2)).run_id

    first = run_id()
    (plugin / "notes.txt").write_text("no code")
    assert run_id() == first
    file = plugin / changed
    file.write_text(file.read_text() + "# changed\n")
    assert run_id() != first


def test_own_methods_have_their_numerics_alone() -> None:
    for name in ("base", "roe", "c3po", "finetune-freeze"):
        method = get_method(name)
        assert method.version.fget(method.__new__(method)) == method.numerics  # type: ignore[attr-defined]


def test_a_plug_in_of_one_file_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "lab_single_module.py"
    digests = set()
    for text in ("A = 1\n", "A = 2\n"):
        file.write_text(text)
        source_digest.cache_clear()
        digests.add(source_digest("lab_single_module"))
    assert len(digests) == 2


def test_a_package_without_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_empty").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    source_digest.cache_clear()
    with pytest.raises(ConfigError, match="lab_empty has no source files"):
        source_digest("lab_empty")
