"""The Python examples of README.md and docs/python.md run as they are written,
and on random models of two families.

The first example of a page loads the model; the others follow it. Broken by: a public name that
is gone or misspelt, an example that needs Hydra or more than twenty lines, one of docs/python.md
that needs more than the embedded model.

The scripts of examples/ end well and say what to look at, and the notebook runs from top to bottom.

Broken by: a key or option that no longer exists, a file that a script
reads and that is not written.

What docs/extending.md shows works: the files of examples/extending/.

Broken by: a change of what a model, a method, a task, a table or a metric of others needs.
"""

import ast
import copy
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

import moe_lab
from moe_lab.config.validators import PositiveFloat
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.tunable_method import GridMethod
from moe_lab.routing import PolicyTokens, Router, Routing
from moe_lab.routing.override import override
from moe_lab.runs.results import Results
from tests.support.command import run_command
from tests.support.models import make_tokenizer, small_model
from tests.support.opened_methods import answered, opened
from tests.support.routed_by_hand import FACTS, PAIRS, base_answers, both_answers

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/python.md")
LINES = 20
OWN = 'from_pretrained("my/model"'
COMMANDS = ("run", "plan", "report", "compare")
"""Names that compose a command, which takes Hydra."""


def examples_of(page: str) -> list[str]:
    return re.findall(
        r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL
    )


def loading(page: str) -> str:
    """The example of a page that loads `my/model`."""
    return next(example for example in examples_of(page) if OWN in example)


def programs() -> dict[str, str]:
    """Every example with what loads `my/model`, by page and number."""
    program_texts = {}
    for page in PAGES:
        for number, example in enumerate(examples_of(page)):
            program_texts[f"{page} {number}"] = f"{loading(page)}\nimport moe_lab\n{example}"
    return program_texts


def with_hydra(program: str) -> bool:
    return any(f"moe_lab.{name}(" in program for name in COMMANDS)


@pytest.fixture
def folder(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with `my/model`."""
    small_model(request.param).save_pretrained(tmp_path / "my" / "model")
    make_tokenizer().save_pretrained(tmp_path / "my" / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["olmoe"], indirect=True)
def test_every_example_runs(folder, capsys):
    for name, program in programs().items():
        exec(compile(program, name, "exec"), {"__name__": name})
    output = capsys.readouterr().out
    assert "toy_choice" in output
    assert "tensor(" in output


@pytest.mark.slow
def test_the_page_runs_as_written(tmp_path, monkeypatch, capsys):
    """One after the other in one namespace, as in a notebook. No file of a model is there."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    for number, example in enumerate(examples_of("docs/python.md")):
        if OWN not in example:
            exec(compile(example, f"docs/python.md {number}", "exec"), names)
    assert "toy_choice" in capsys.readouterr().out
    assert type(names["model"]).__name__ == "OlmoeForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["gpt_oss"], indirect=True)
def test_a_fresh_interpreter_without_hydra_suffices(folder):
    own_programs = [program for program in programs().values() if not with_hydra(program)]
    assert len(own_programs) > 5
    check = (
        "import sys\nassert not {'hydra', 'omegaconf'} & sys.modules.keys()\nprint('no Hydra')\n"
    )
    isolated = "".join(
        f"exec(compile({program!r}, 'example', 'exec'), {{}})\n" for program in own_programs
    )
    command = [sys.executable, "-c", isolated + check]
    # the programs print what small random weights write, in letters of any script
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(
        command, capture_output=True, encoding="utf-8", check=False, cwd=folder, env=environment
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.endswith("no Hydra\n")


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["olmoe"], indirect=True)
def test_the_loaded_model_has_the_numbers_of_the_command(folder, capsys):
    """A checkpoint in bfloat16, on a CPU.

    Broken by another dtype in the example or in the command.
    """
    copy.deepcopy(small_model("olmoe")).bfloat16().save_pretrained(folder / "my" / "model")
    keys = [
        "method=roe",
        "model.path=my/model",
        "task=toy_choice",
        "limit=2",
        "method.n=4",
        "baseline=false",
    ]
    ended = run_command(capsys, *keys, "device=cpu", f"output_dir={folder}/outputs")
    assert ended.code == 0, ended.err
    files = folder.glob("outputs/runs/*/samples_*.jsonl")
    samples = []
    for file in files:
        samples += [json.loads(line) for line in file.open()]
    assert samples
    for page in PAGES:
        names: dict[str, Any] = {}
        exec(compile(loading(page), page, "exec"), names)
        roe = moe_lab.RoE(names["model"], names["tokenizer"], n=4)
        for sample in samples:
            pairs = [list(arguments.values()) for arguments in sample["arguments"].values()]
            contexts = [context for context, _ in pairs]
            continuations = [continuation for _, continuation in pairs]
            scores = roe.loglikelihood(contexts, continuations)
            stored_scores = [float(answer[0][0]) for answer in sample["resps"]]
            assert scores == pytest.approx(stored_scores, abs=1e-4), page


def test_an_example_has_at_most_twenty_lines():
    for name, program in programs().items():
        lines = [line for line in program.splitlines() if line]
        assert len(lines) <= LINES, name


def test_the_public_names():
    """A name that is taken away breaks what others wrote."""
    names = (
        "C3PO ExpertMetrics RoE Routes compare compare_routes expert_metrics freeze lm override "
        "plan record replay report run tiny"
    )
    assert sorted(moe_lab.__all__) == names.split()


def test_every_public_name_has_an_example_and_a_docstring():
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for name in moe_lab.__all__:
        assert re.search(rf"\b{name}\(", "".join(examples_of("docs/python.md"))), name
        assert f"`{name}`" in page, name
        assert len(getattr(moe_lab, name).__doc__) > 100, name
        assert f"| `{name}` | {' '.join(getattr(moe_lab, name).__doc__.split())[:16]}" in table, (
            name
        )
    assert set(moe_lab.__all__) <= set(dir(moe_lab))
    with pytest.raises(AttributeError, match="no attribute 'Roe'"):
        _ = moe_lab.Roe


EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOK = EXAMPLES / "first_hour.ipynb"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_ends_and_says_what_to_look_at(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    output = capsys.readouterr().out
    assert "What to look at:" in output
    assert "PARTIAL" in output
    assert (tmp_path / "outputs" / "report.html").is_file()
    assert list(tmp_path.glob("outputs/runs/*/results.json"))


def shown_by(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does: what its last expression gives is shown."""
    if cell.startswith("%%writefile "):
        file, _, content = cell.removeprefix("%%writefile ").partition("\n")
        Path(file).write_text(content, encoding="utf-8")
        return None
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def run_notebook(file: Path) -> tuple[dict[str, Any], list[Any]]:
    """The names of a notebook, and what its cells show. It is stored without outputs."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    names = dict[str, Any]()
    return names, [shown_by("".join(cell["source"]), names) for cell in code]


@pytest.mark.slow
def test_the_notebook_goes_from_a_model_to_a_plotted_grid(tmp_path, monkeypatch, capfd):
    """In less than two minutes of one core."""
    monkeypatch.chdir(tmp_path)
    begun = time.process_time()
    names, outputs = run_notebook(NOTEBOOK)
    assert time.process_time() - begun < 120
    assert capfd.readouterr() == ("", ""), "nothing is printed around the shown objects"
    pictures = [output._repr_png_() for output in outputs if hasattr(output, "_repr_png_")]
    assert len(pictures) == 1
    assert pictures[0].startswith(b"\x89PNG")
    results = names["results"]
    assert isinstance(results, Results)
    assert any(output is results for output in outputs)
    assert len(results) == 4
    assert len(outputs[-1]) == 2 * 5, "two examples that changed, in five runs"
    assert not results.frame()["p_holm"].lt(0.05).any(), "the text says that none is significant"


@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["routing_idea", "hub_model"])
def test_a_notebook_ends_in_a_plot_of_its_runs(notebook, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    _, outputs = run_notebook(EXAMPLES / f"{notebook}.ipynb")
    assert capfd.readouterr() == ("", "")
    assert any(hasattr(output, "_repr_png_") for output in outputs)
    assert not outputs[-1]["value"].isna().any()


def test_the_first_hour_lists_every_script():
    page = (EXAMPLES.parent / "docs" / "index.md").read_text(encoding="utf-8")
    for file in EXAMPLES.glob("*.ipynb"):
        assert f"`examples/{file.name}`" in page
    assert SCRIPTS
    assert not [script.name for script in SCRIPTS if f"`examples/{script.name}`" not in page]


EXTENDING = Path(__file__).resolve().parent.parent / "examples" / "extending"


SNIPPET = re.compile(r"```yaml\n# (conf/\S+)\n(.*?)```", re.DOTALL)


def test_the_snippets_of_the_page_are_the_files_of_the_folder():
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    snippets = dict(SNIPPET.findall(page))
    kinds = ("model/mine", "task/capitals", "experiments/sharper")
    assert list(snippets) == [f"conf/{kind}.yaml" for kind in kinds]
    for name, text in snippets.items():
        assert text == (EXTENDING / name).read_text(encoding="utf-8")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, in which the commands of the page are given."""
    folder = tmp_path / "extending"
    shutil.copytree(EXTENDING, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package in a folder, installed as its pyproject.toml says."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = package / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, entries),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(package)
    try:
        yield
    finally:
        sys.modules.pop(about.name.partition("-")[0], None)


@pytest.fixture
def sharper(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The method's package."""
    with installed(work / "sharper", monkeypatch):
        yield


def results(out: str) -> dict:
    """The results.json that a command names in its last line."""
    return json.loads(Path(out.splitlines()[-1]).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_method(sharper, capsys):
    run = ("model=tiny", "task=toy_choice", "limit=8", "method=sharper")
    same_method = run_command(capsys, *run, "method.power=1")
    other_method = run_command(capsys, *run, "method.power=4")
    assert same_method.code == 0 == other_method.code
    block = results(same_method.out)["moe_lab"]
    assert block["paired"]["toy_choice"]["acc,none"]["difference"] == 0
    assert results(other_method.out)["moe_lab"]["run_id"] != block["run_id"]
    assert "More weight for a token" in run_command(capsys, "--help", "method=sharper").out
    wrong = run_command(capsys, *run, "method.power=0")
    assert wrong.code == 2
    assert "method.power" in wrong.err


def test_a_method_in_python(sharper, olmoe, tokenizer):
    requests = [Instance("loglikelihood", {}, ("hello", " world"), idx=0, task_name="", doc_id=0)]

    def score(*method: str, **keys: float) -> float:
        return moe_lab.lm(olmoe, tokenizer, *method, **keys).loglikelihood(requests)[0][0]

    assert score("sharper", power=1.0) == pytest.approx(score(), abs=1e-4)
    assert abs(score("sharper", power=4.0) - score()) > 1e-3


def test_the_method_with_a_grid(sharper, olmoe, tokenizer):
    """The class of the page, with the policy of the folder's `Sharper`."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(class Sharper\(GridMethod\).*?)```", page, re.DOTALL)
    names = {
        "dataclass": dataclass,
        "GridMethod": GridMethod,
        "PositiveFloat": PositiveFloat,
        "__name__": __name__,
    }
    exec(compile(code, "docs/extending.md", "exec"), names)
    kind: Any = names["Sharper"]
    kind.sharpen = get_method("sharper").sharpen

    with opened(kind(kind.Config()), olmoe, tokenizer) as lm:
        sharper_answers = both_answers(lm)
    with opened(kind(kind.Config(power=1.0)), olmoe, tokenizer) as lm:
        scores = [score for score, _ in answered(lm, "loglikelihood", PAIRS)]

    base = [score for score, _ in base_answers(olmoe, tokenizer)[0]]
    assert kind(kind.Config()).grid(FACTS)[0] == {"power": 1.0}
    assert scores == pytest.approx(base, abs=1e-4), "the base model is the first of its grid"
    assert sharper_answers[0] != base_answers(olmoe, tokenizer)[0]
    with pytest.raises(ConfigError, match="power"):
        kind.Config(power=0.0)


def test_expert_dropout_is_a_loop_over_tokens(work, olmoe, tokenizer):
    """The page's function is the file's. Without dropout it is the base model; else each token has
    its experts that stay, and the best of the others."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    [snippet] = re.findall(r"# expert_dropout\.py\n(.*?)```", page, re.DOTALL)
    code = Path("expert_dropout.py").read_text(encoding="utf-8")
    assert code.endswith(snippet)

    keys = {"name": "policy", "policy": "expert_dropout.py:expert_dropout"}
    method: Any = get_method("policy")
    config_class = method.config_class(keys)
    with opened(method(config_class(**keys, p=0.0)), olmoe, tokenizer) as lm:
        assert both_answers(lm) == base_answers(olmoe, tokenizer)
    with opened(method(config_class(**keys, p=0.5, n=4)), olmoe, tokenizer) as lm:
        assert both_answers(lm)[0] != base_answers(olmoe, tokenizer)[0]

    function = method(config_class(**keys)).function
    seen = []

    def compare(router: Router, routing: Routing, tokens: PolicyTokens) -> Routing:
        changed = function(router, routing, tokens, p=0.5)
        uniform = tokens.uniform(router)
        for token, logits in enumerate(routing.logits_TE.tolist()):
            own = routing.index_TK[token].tolist()
            kept = {expert for expert in own if uniform[token, expert] >= 0.5}
            others = sorted(set(range(len(logits))) - set(own), key=lambda e: -logits[e])
            expected = kept | set(others[: len(own) - len(kept)])
            assert set(changed.index_TK[token].tolist()) == expected
            seen.append(len(kept))
        return changed

    with override(olmoe, compare, seed=3), torch.no_grad():
        olmoe(torch.arange(40)[None])
    assert set(seen) == {0, 1, 2}


@pytest.mark.slow
def test_a_table(sharper, work, capsys):
    ended = run_command(capsys, "--config-dir", "conf", "experiment=sharper")
    assert ended.code == 0, ended.err
    table = (work / "outputs" / "tables" / "sharper-tiny.csv").read_text(encoding="utf-8")
    assert [row for row in ("0.5", "1", "2") if f"\n{row}," not in table] == []
    record = json.loads(
        (work / "outputs" / "tables" / "sharper-tiny.json").read_text(encoding="utf-8")
    )
    flag, folder, *overrides = shlex.split(record["command"])[3:]
    assert flag == "--config-dir"
    assert (work / folder / "experiments").is_dir()
    assert overrides == ["experiment=sharper", "scale=tiny"]


@pytest.mark.slow
def test_a_model_and_a_task(work, tiny_olmoe_dir, capsys):
    shutil.copytree(tiny_olmoe_dir, work / "models" / "mine")
    ended = run_command(
        capsys, "--config-dir", "conf", "method=base", "model=mine", "task=capitals"
    )
    assert ended.code == 0, ended.err
    scores = results(ended.out)
    assert scores["moe_lab"]["model"]["name"] == "mine"
    assert scores["n-samples"]["capitals"]["effective"] == 4
