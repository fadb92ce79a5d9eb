"""The scripts of examples/ end well and say what to look at, and the notebook runs from top to bottom.

Broken by: a key or option that no longer exists, a file that a script reads and that is not written.
"""

import ast
import json
import runpy
import time
from pathlib import Path
from typing import Any

import pytest

from moe_lab.runs.results import Results

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOK = EXAMPLES / "first_hour.ipynb"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_ends_and_says_what_to_look_at(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    shown = capsys.readouterr().out
    assert "What to look at:" in shown and "PARTIAL" in shown
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
    names, shown = run_notebook(NOTEBOOK)
    assert time.process_time() - begun < 120
    assert capfd.readouterr() == ("", ""), "nothing is printed around the shown objects"
    pictures = [one._repr_png_() for one in shown if hasattr(one, "_repr_png_")]
    assert len(pictures) == 1 and pictures[0].startswith(b"\x89PNG")
    results = names["results"]
    assert isinstance(results, Results) and any(one is results for one in shown) and len(results) == 4
    assert len(shown[-1]) == 2 * 5, "two examples that changed, in five runs"
    assert not results.frame()["p_holm"].lt(0.05).any(), "the text says that none is significant"


@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["routing_idea", "hub_model"])
def test_a_notebook_ends_in_a_plot_of_its_runs(notebook, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    _, shown = run_notebook(EXAMPLES / f"{notebook}.ipynb")
    assert capfd.readouterr() == ("", "")
    assert any(hasattr(one, "_repr_png_") for one in shown) and not shown[-1]["value"].isna().any()


def test_the_first_hour_lists_every_script():
    page = (EXAMPLES.parent / "docs" / "index.md").read_text(encoding="utf-8")
    assert all(f"`examples/{file.name}`" in page for file in EXAMPLES.glob("*.ipynb"))
    assert SCRIPTS and not [script.name for script in SCRIPTS if f"`examples/{script.name}`" not in page]
