"""The interface of methods. Broken by: hooks in another order, a training hook that other methods see, a name that is
found nowhere, information of a session that is lost where all answers are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import moe_lab.runs.prepare
from moe_lab.config.catalog import option_files
from moe_lab.config.paths import resource_folder
from moe_lab.methods import get_method, method, method_names
from moe_lab.methods.base import Base
from moe_lab.methods.method import Method
from moe_lab.methods.training_method import ModelMaker, TrainingMethod
from moe_lab.models.pool import ModelPool
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from tests.support.runs import config, small_data

HOOKS = ("check", "data_identity", "identity", "resolve_model", "open", "report")


class Recorded(Base):
    """Trains nothing and notes its calls."""

    def resolve_model(self, config: Any, facts: Any, free: Any) -> Any:
        return config

    def training_left(self, config: Any, facts: Any) -> dict[str, tuple[int, int]]:
        return {}

    def training_memory(self, config: Any, facts: Any) -> None:
        return None

    @contextmanager
    def open(self, model: Any, context: Any) -> Iterator[Any]:
        assert context.folder.name.startswith("small-base")
        with super().open(model, context) as lm:
            lm.session_info = {"answered_by": "Noted"}
            yield lm

    def report(self, facts: Any, counters: Any, session_info: Any) -> dict[str, Any]:
        return {"recorded": dict(session_info)}


def recorded(kind: type[Method], calls: list[str]) -> type[Method]:
    """The class, its hooks noted as they are called."""

    def noting(name: str) -> Any:
        def call(self: Any, *given: Any) -> Any:
            calls.append(name)
            return getattr(kind, name)(self, *given)

        return call

    hooks = {name: noting(name) for name in HOOKS}
    return type("Noted", (kind, TrainingMethod), hooks | {"__module__": Base.__module__})


def test_hooks_are_called_in_the_documented_order(
    tiny_olmoe_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    kind = recorded(Recorded, calls)
    monkeypatch.setattr(moe_lab.runs.prepare, "get_method", lambda name: kind)
    one = config(tiny_olmoe_dir, small_data(tmp_path / "data"), tmp_path, limit=2, baseline=False)
    run = prepare(one)
    first = execute(run, ModelPool())
    assert calls == list(HOOKS)
    assert method.__doc__ is not None
    places = [method.__doc__.index(f"\n    {name} ") for name in HOOKS]
    assert places == sorted(places), "the documented order"
    assert first.results["moe_lab"]["recorded"] == {"answered_by": "Noted"}
    calls.clear()
    (run.folder / "results.json").unlink()
    again = execute(prepare(one), ModelPool())
    assert calls == ["check", "data_identity", "identity", "report"]
    assert again.results["moe_lab"]["recorded"] == {"answered_by": "Noted"}


def test_only_methods_that_train_have_training_hooks() -> None:
    hooks = {"resolve_model", "training_left", "training_memory", "train"}
    kinds = {name: get_method(name) for name in option_files("method", [resource_folder("conf")])}
    training = {name for name, kind in kinds.items() if issubclass(kind, TrainingMethod | ModelMaker)}
    assert training == {name for name, kind in kinds.items() if hooks & set(dir(kind))}
    assert training == {"finetune-freeze", "pretrain-tiny"}


def test_every_yaml_names_a_method() -> None:
    for name in option_files("method", [resource_folder("conf")]):
        kind = get_method(name)
        assert kind.Config.name == name and name in method_names()


def test_a_method_is_one_module_and_one_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds `throw-away` in a copy of conf/ and a folder on the package's path."""
    import moe_lab.methods

    folder = tmp_path / "conf" / "method"
    folder.mkdir(parents=True)
    (folder / "throw-away.yaml").write_text("# Throws answers away\n# Its name\nname: throw-away\n")
    code = (
        "from dataclasses import dataclass\n"
        "from moe_lab.methods.base import Base\n"
        "from moe_lab.methods.method import Method\n\n"
        "class ThrowAway(Base):\n"
        "    @dataclass(kw_only=True)\n"
        "    class Config(Method.Config):\n"
        "        name: str = 'throw-away'\n"
    )
    (tmp_path / "throw_away.py").write_text(code)
    found = tuple(option_files("method", [tmp_path / "conf"]))
    monkeypatch.setattr(moe_lab.methods, "OWN_NAMES", found)
    monkeypatch.setattr(moe_lab.methods, "__path__", [*moe_lab.methods.__path__, str(tmp_path)])
    assert method_names() == ["throw-away"]
    assert get_method("throw-away").Config().name == "throw-away"
    assert get_method("throw-away").__name__ == "ThrowAway"
