"""integrations/nv_embed: the file that the script writes is what `method.embeddings=` reads, row for row.

Broken by: a question or reference of a run without a vector, a vector of another text, an instruction before a reference, a
text without its end, settings that are not those of the model's card.

The answers that `make test-vllm` compares vLLM with are those of `moe_lab.RoE` today, and vLLM can import what it uses.

Broken by: a change of the noise or of RoE without `python -m integrations.vllm.tests.write_answers`; another name of
something that integrations/vllm imports; an import of transformers in the modules that vLLM's environment imports.
"""

import ast
import json
import runpy
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from integrations.vllm.tests.cases import ANSWERS, CASES
from integrations.vllm.tests.write_answers import answers_of, context_of, loaded, prompts_of
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.references.embeddings import embed
from moe_lab.tasks.loading import load_tasks
from tests.support.command import run_command
from tests.support.documents import OPENBOOKQA, SCIQ
from tests.support.rounding import approx
from tests.support.runs import choices, write_jsonl
from tests.support.tiers import first_fast

SCRIPT = Path(__file__).resolve().parents[1] / "integrations" / "nv_embed" / "nv_embed.py"
END = "</s>"


def vector(text: str, prompt: str | None) -> list[float]:
    """The stub's embedding of a text."""
    return [
        float(len(text)),
        float(text.count("e")),
        float(sum(text.encode()) % 97),
        50.0 if prompt else 0.0,
    ]


class Stub:
    """SentenceTransformer with that embedding. It refuses what the model's card does not say."""

    def __init__(self, name: str, trust_remote_code: bool):
        assert name == "nvidia/NV-Embed-v2" and trust_remote_code
        self.max_seq_length = 4096
        self.tokenizer: Any = SimpleNamespace(padding_side="left", eos_token=END)

    def encode(
        self, texts: list[str], prompt: str | None, normalize_embeddings: bool, **options: Any
    ) -> Any:
        assert (self.max_seq_length, self.tokenizer.padding_side) == (32768, "right")
        assert normalize_embeddings and all(text.endswith(END) for text in texts)
        assert prompt is None or (
            prompt.startswith("Instruct: Given") and prompt.endswith("\nQuery: ")
        )
        rows = torch.tensor([vector(text.removesuffix(END), prompt) for text in texts])
        return torch.nn.functional.normalize(rows, dim=1).numpy()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(
        sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Stub)
    )
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two data sets of questions, and those that their references are taken from."""
    books = [OPENBOOKQA | {"question_stem": f"Ice number {i} is"} for i in range(6)]
    write_jsonl(tmp_path / "data" / "arc_easy" / "test.jsonl", choices(5))
    write_jsonl(tmp_path / "data" / "arc_challenge" / "test.jsonl", choices(4, start=50))
    write_jsonl(tmp_path / "data" / "openbookqa" / "train.jsonl", books)
    write_jsonl(tmp_path / "data" / "sciq" / "validation.jsonl", [SCIQ])
    return tmp_path / "data"


def write_vectors(script: dict[str, Any], command: list[str], tmp_path: Path, capsys: Any) -> Path:
    """The vectors file of a command, by both steps."""
    capsys.readouterr()
    script["main"](["texts", *command])
    (tmp_path / "texts.jsonl").write_text(capsys.readouterr().out)
    script["main"](
        ["vectors", str(tmp_path / "texts.jsonl"), str(tmp_path / "vectors" / "nv.safetensors")]
    )
    return tmp_path / "vectors" / "nv.safetensors"


def test_every_question_and_reference_has_its_vector(script, data, tmp_path, capsys):
    grid = "-m method=c3po task=arc_easy,arc_challenge limit=4 num_fewshot=0".split()
    file = write_vectors(script, [*grid, f"data_dir={data}"], tmp_path, capsys)
    asked: dict[str, bool] = {}
    read = {"arc_easy": (), "arc_challenge": (), "openbookqa": ("train",), "sciq": ("validation",)}
    for name, splits in read.items():
        config = Config(task=TaskConfig(name=name, answer="letters"), data_dir=str(data))
        task = load_tasks(config, splits=splits)["tasks"][name]
        asked |= dict.fromkeys(map(task.doc_to_text, task.task_docs), not splits)
    lines = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    written = {line["text"]: line["query"] for line in lines}
    left_out = asked.keys() - written.keys()
    assert written == {text: query for text, query in asked.items() if text not in left_out}
    assert len(left_out) == 1 and all("Which colour" in text for text in left_out), (
        "one of arc_easy"
    )
    texts = list(written)[::-1]
    expected = torch.tensor([vector(text, "Instruct" if written[text] else None) for text in texts])
    assert torch.allclose(
        embed(texts, file, None), torch.nn.functional.normalize(expected, dim=1), atol=1e-6
    )


def test_a_command_without_embeddings_is_refused(script):
    with pytest.raises(ConfigError, match="No method of this command reads method.embeddings"):
        script["main"](["texts", "method=base", "task=toy_choice"])


@pytest.mark.slow
def test_an_experiment_runs_with_its_file_and_names_it(script, tmp_path, capsys):
    few = [
        "experiment=c3po/table14",
        "scale=tiny",
        "limit=3",
        "method.reference_size=30",
        f"output_dir={tmp_path}",
    ]
    file = write_vectors(script, few, tmp_path, capsys)
    ended = run_command(capsys, *few, f"method.embeddings={file}")
    assert ended.code == 0, ended.err
    [table] = (tmp_path / "tables").glob("c3po-table14-tiny-*.md")
    text = table.read_text(encoding="utf-8")
    assert f"method.embeddings={file}" in text.partition("\n")[0]
    assert "cannot be" not in text


PACKAGE = Path(__file__).resolve().parents[1] / "integrations" / "vllm" / "moe_lab_vllm"
FEW, NEW = 1, 8
"""Prompts, and new tokens of each, that are computed again."""

stored = json.loads(ANSWERS.read_text(encoding="utf-8"))
of_model = cache(loaded)


@pytest.mark.parametrize("name", first_fast(CASES))
def test_stored_answers_are_current(name):
    """Of the first prompts; their texts do not depend on the other prompts."""
    model, tokenizer, weights = of_model(CASES[name].model)
    known = stored[name]
    assert known["weights"] == weights
    assert known["prompts"] == prompts_of(CASES[name], tokenizer)
    found = answers_of(CASES[name], known["prompts"][:FEW], NEW, model, tokenizer)
    for kind, values in found.items():
        if kind.endswith("texts"):
            assert values == [text[:NEW] for text in known[kind][:FEW]], kind
        else:
            scored = max(len(prompt) - context_of(prompt) for prompt in known["prompts"][:FEW])
            assert values == approx(known[kind][:FEW], scored), kind


def test_no_case_is_missing():
    assert list(stored) == list(CASES)


def imported() -> list[tuple[str, str]]:
    """(module of moe_lab, name) of every import in the package."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.glob("*.py"))]
    nodes: list[Any] = [node for tree in trees for node in ast.walk(tree)]
    statements = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    own = [node for node in statements if node.module.split(".")[0] == "moe_lab"]
    return sorted({(node.module, alias.name) for node in own for alias in node.names})


def test_imported_names_exist():
    names = imported()
    assert names and not [
        name for module, name in names if not hasattr(import_module(module), name)
    ]


@pytest.mark.slow
def test_imports_need_no_transformers():
    """vLLM's environment has an older transformers than this package needs."""
    modules = sorted({module for module, _ in imported()})
    code = f"import sys; sys.modules['transformers'] = None; import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], check=True)
