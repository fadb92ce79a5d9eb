"""The interface of methods.

Broken by: hooks in another order, a training hook that other methods see, a name that is not found,
information of a session that is lost if all answers are stored, a stored result that is returned
after a plug-in's code changed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest
from omegaconf import OmegaConf

import moe_lab.runs.prepare
from moe_lab.config.catalog import option_files, resource_folder
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method, method, method_names
from moe_lab.methods.base import Base
from moe_lab.methods.method import Method, ModelMaker, TrainingMethod
from moe_lab.methods.tunable_method import TunableMethod
from moe_lab.models.memory import ModelPool
from moe_lab.results.code_digest import source_digest
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from tests.support.runs import config, small_data

HOOKS = ("trained_facts", "check", "data_identity", "identity", "resolve_model", "open", "report")


class Recorded(Base):
    """Trains nothing and notes its calls."""

    def trained_facts(self, config: Any, facts: Any) -> Any:
        return facts

    def resolve_model(self, config: Any, facts: Any, free: Any) -> Any:
        return config

    def training_left(self, config: Any, facts: Any) -> dict[str, tuple[int, int]]:
        return {}

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
        def call(self: Any, *arguments: Any) -> Any:
            calls.append(name)
            return getattr(kind, name)(self, *arguments)

        return call

    hooks = {name: noting(name) for name in HOOKS}
    return type("Noted", (kind, TrainingMethod), hooks | {"__module__": Base.__module__})


def test_hooks_are_called_in_the_documented_order(tiny_olmoe_dir, tmp_path, monkeypatch):
    calls: list[str] = []
    kind = recorded(Recorded, calls)
    monkeypatch.setattr(moe_lab.runs.prepare, "get_method", lambda name: kind)
    request = config(
        tiny_olmoe_dir, small_data(tmp_path / "data"), tmp_path, limit=2, baseline=False
    )
    run = prepare(request)
    first = execute(run, ModelPool())
    assert calls == list(HOOKS)
    places = [method.__doc__.index(f"\n    {name} ") for name in HOOKS]
    assert places == sorted(places), "the documented order"
    assert first.results["moe_lab"]["recorded"] == {"answered_by": "Noted"}
    calls.clear()
    (run.folder / "results.json").unlink()
    second_outcome = execute(prepare(request), ModelPool())
    assert calls == ["trained_facts", "check", "data_identity", "identity", "report"]
    assert second_outcome.results["moe_lab"]["recorded"] == {"answered_by": "Noted"}


def test_an_unknown_method_is_refused_with_the_known_ones():
    names = ", ".join(method_names())
    with pytest.raises(ConfigError, match=f"'reo'. Methods: {names}"):
        get_method("reo")


def test_only_methods_that_train_have_training_hooks():
    hooks = {"trained_facts", "resolve_model", "training_left", "training_memory", "train"}
    kinds = {name: get_method(name) for name in option_files("method", [resource_folder("conf")])}
    training = {
        name for name, kind in kinds.items() if issubclass(kind, TrainingMethod | ModelMaker)
    }
    assert training == {name for name, kind in kinds.items() if hooks & set(dir(kind))}
    assert training == {"finetune-freeze", "pretrain", "pretrain-tiny"}


def test_a_study_can_choose_the_settings_of_these_methods():
    kinds = {name: get_method(name) for name in option_files("method", [resource_folder("conf")])}
    tunings = {
        name: kind.tunings for name, kind in kinds.items() if issubclass(kind, TunableMethod)
    }
    assert tunings == {
        "calibration": ("scale",),
        "policy": ("grid", "tpe", "random"),
        "roe": ("tpe", "random", "uniform", "scale"),
        "scmoe": ("grid",),
        "steer": ("grid",),
        "top-k": ("grid",),
        "top-p": ("grid",),
    }


@pytest.mark.parametrize("name", option_files("method", [resource_folder("conf")]))
def test_every_yaml_names_a_method_and_holds_its_defaults(name):
    kind = get_method(name)
    assert kind.Config.name == name
    assert name in method_names()
    stored = OmegaConf.to_container(
        OmegaConf.load(resource_folder("conf") / "method" / f"{name}.yaml")
    )
    assert stored == asdict(kind.Config())


def test_a_method_is_one_module_and_one_yaml(tmp_path, monkeypatch):
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
    options = tuple(option_files("method", [tmp_path / "conf"]))
    monkeypatch.setattr(moe_lab.methods, "OWN_NAMES", options)
    monkeypatch.setattr(moe_lab.methods, "__path__", [*moe_lab.methods.__path__, str(tmp_path)])
    assert method_names() == ["throw-away"]
    assert get_method("throw-away").Config().name == "throw-away"
    assert get_method("throw-away").__name__ == "ThrowAway"


@pytest.mark.parametrize("changed", ["halved.py", "scale.py", "deep/rest.py"])
def test_any_change_of_a_plug_ins_source_is_another_version(changed, tmp_path, monkeypatch):
    """The version is part of every run id."""
    package = tmp_path / "lab_plugin"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__.py", "halved.py", "scale.py", "deep/rest.py"):
        (package / name).write_text("# first\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugin: Any = type("Halved", (Base,), {"__module__": "lab_plugin.halved"})

    def version() -> int | str:
        source_digest.cache_clear()
        return plugin(Base.Config()).version

    first = version()
    (package / "notes.txt").write_text("no code")
    assert version() == first
    (package / changed).write_text("# changed\n")
    assert version() != first
