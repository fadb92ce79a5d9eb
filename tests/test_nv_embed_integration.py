"""integrations/nv_embed: the file that the script writes is what `method.embeddings=` reads,
row for row.

Broken by: a question or reference of a run without a vector, a vector of another text,
an instruction before a reference, a text without its end, settings that are not
those of the model's card.
"""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.references.embeddings import embed
from moe_lab.tasks.loading import load_tasks
from tests.support.command import run_command
from tests.support.documents import OPENBOOKQA, SCIQ
from tests.support.runs import choices, write_jsonl

SCRIPT = Path(__file__).resolve().parents[1] / "integrations" / "nv_embed" / "nv_embed.py"
END = "</s>"


def vector(text: str, is_query: bool) -> list[float]:
    """The stub's embedding of a text, not of unit length."""
    length = float(len(text))
    letters = float(text.count("e"))
    checksum = float(sum(text.encode()) % 97)
    instruction = 50.0 if is_query else 0.0
    return [length, letters, checksum, instruction]


class StubTransformer:
    """SentenceTransformer with that embedding. It refuses what the model's card does not say."""

    def __init__(self, name: str, trust_remote_code: bool):
        assert name == "nvidia/NV-Embed-v2"
        assert trust_remote_code
        self.max_seq_length = 4096
        self.tokenizer: Any = SimpleNamespace(padding_side="left", eos_token=END)

    def encode(
        self, texts: list[str], prompt: str | None, normalize_embeddings: bool, **options: Any
    ) -> Any:
        assert self.max_seq_length == 32768
        assert self.tokenizer.padding_side == "right"
        assert normalize_embeddings
        is_query = prompt is not None
        if is_query:
            assert prompt.startswith("Instruct: Given")
            assert prompt.endswith("\nQuery: ")
        rows = []
        for text in texts:
            assert text.endswith(END)
            rows.append(vector(text.removesuffix(END), is_query))
        return torch.nn.functional.normalize(torch.tensor(rows), dim=1).numpy()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = SimpleNamespace(SentenceTransformer=StubTransformer)
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two data sets of questions, and those that their references are taken from."""
    folder = tmp_path / "data"
    books = [OPENBOOKQA | {"question_stem": f"Ice number {i} is"} for i in range(6)]
    write_jsonl(folder / "arc_easy" / "test.jsonl", choices(5))
    write_jsonl(folder / "arc_challenge" / "test.jsonl", choices(4, start=50))
    write_jsonl(folder / "openbookqa" / "train.jsonl", books)
    write_jsonl(folder / "sciq" / "validation.jsonl", [SCIQ])
    return folder


def write_vectors(script: dict[str, Any], command: list[str], tmp_path: Path, capsys: Any) -> Path:
    """The vectors file of a command, by both steps."""
    texts = tmp_path / "texts.jsonl"
    vectors = tmp_path / "vectors" / "nv.safetensors"
    capsys.readouterr()
    script["main"](["texts", *command])
    texts.write_text(capsys.readouterr().out)
    script["main"](["vectors", str(texts), str(vectors)])
    return vectors


def prompts_of(name: str, data: Path, splits: tuple[str, ...] = ()) -> list[str]:
    """The prompts of a task: of its questions, or of other splits."""
    config = Config(task=TaskConfig(name=name, answer="letters"), data_dir=str(data))
    task = load_tasks(config, splits=splits)["tasks"][name]
    return [task.doc_to_text(document) for document in task.task_docs]


def test_every_question_and_reference_has_its_vector(script, data, tmp_path, capsys):
    command = [
        "-m",
        "method=c3po",
        "task=arc_easy,arc_challenge",
        "limit=4",
        "num_fewshot=0",
        f"data_dir={data}",
    ]
    file = write_vectors(script, command, tmp_path, capsys)

    five_questions = prompts_of("arc_easy", data)
    questions = five_questions + prompts_of("arc_challenge", data)
    references = prompts_of("openbookqa", data, ("train",))
    references += prompts_of("sciq", data, ("validation",))
    is_query = {}
    for line in (tmp_path / "texts.jsonl").read_text().splitlines():
        row = json.loads(line)
        is_query[row["text"]] = row["query"]
    expected = dict.fromkeys(questions, True) | dict.fromkeys(references, False)
    [beyond_the_limit] = expected.keys() - is_query.keys()
    assert beyond_the_limit in five_questions
    del expected[beyond_the_limit]
    assert is_query == expected

    texts = list(is_query)[::-1]
    vectors = torch.tensor([vector(text, is_query[text]) for text in texts])
    unit_vectors = torch.nn.functional.normalize(vectors, dim=1)
    assert torch.allclose(embed(texts, file, None), unit_vectors, atol=1e-6)


def test_a_command_without_embeddings_is_refused(script):
    with pytest.raises(ConfigError, match="No method of this command reads method.embeddings"):
        script["main"](["texts", "method=base", "task=toy_choice"])


@pytest.mark.slow
def test_an_experiment_runs_with_its_file_and_names_it(script, tmp_path, capsys):
    command = [
        "experiment=c3po/table14",
        "scale=tiny",
        "limit=3",
        "method.reference_size=30",
        f"output_dir={tmp_path}",
    ]
    file = write_vectors(script, command, tmp_path, capsys)
    ended = run_command(capsys, *command, f"method.embeddings={file}")
    assert ended.code == 0, ended.err
    [table] = (tmp_path / "tables").glob("c3po-table14-tiny-*.md")
    text = table.read_text(encoding="utf-8")
    first_line = text.partition("\n")[0]
    assert f"method.embeddings={file}" in first_line
    assert "cannot be" not in text
