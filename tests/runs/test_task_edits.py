"""Breaks if a run keeps its id after an edit of the user's own task that may change
its score, or loses it otherwise."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from moe_lab.config.schema import TaskConfig
from moe_lab.runs.prepare import prepare
from moe_lab.tasks import task_index
from moe_lab.tasks.loading import task_cache
from tests.support.command import run_command, run_forked
from tests.support.runs import config
from tests.support.tiers import first_fast

FILES = {
    "tasks/_common.yaml": """\
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/data/test.jsonl}}
test_split: test
doc_to_text: "Question: {{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 4}
""",
    "tasks/mine.yaml": """\
task: mine
include: _common.yaml
output_type: generate_until
# The questions.
process_docs: !function own.tools.documents
process_results: !function scoring.score
filter_list:
- name: first
  filter: [{function: regex, regex_pattern: "(x)"}, {function: take_first}]
metric_list: [{metric: worth, aggregation: !function scoring.center, higher_is_better: true}]
num_fewshot: 0
metadata: {version: 1}
""",
    "tasks/choice.yaml": """\
task: choice
include: _common.yaml
output_type: multiple_choice
doc_to_choice: {a: "yes", b: "no"}
doc_to_target: !function scoring.gold
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "tasks/made.yaml": """\
task: made
class: !function made.Made
level: 3
""",
    "tasks/all.yaml": """\
group: all
group_alias: Everything
task:
  - mine
  - {task: made, description: "Asked again."}
  - group: inner
    task: [choice]
    aggregate_metric_list: [{metric: acc, weight_by_size: true}]
aggregate_metric_list:
  - metric: acc
    aggregation: !function weights.weighted
    filter_list: [none, first]
    weight_by_size: false
metadata: {version: 2}
""",
    "tasks/scoring.py": """\
'''How answers are scored.'''
import helpers
from common.decorators import rounded, made_by
from shared import limits as bounds

# all answers are worth this
WEIGHT = 0.6
OPTIONS = {'strict': True, "names": ["a", "b"]}

def score(doc, results):
    '''The score of one answer.'''
    from late import bonus

    return {"worth": worth(doc) + bonus()}

def worth(doc: dict) -> float:
    return WEIGHT * helpers.scale(doc) if OPTIONS["strict"] else 0.0

gold = made_by(0)

@rounded(2)
def center(values):
    return sum(values) / len(values)
""",
    "tasks/helpers.py": """\
from chain import link
FACTOR = 1

def scale(doc):
    return FACTOR * link(len(doc["answer"]))
""",
    "tasks/chain.py": "def link(x):\n    return x + 1\n",
    "tasks/late.py": "def bonus():\n    return 0.0\n",
    "tasks/weights.py": "def weighted(values, sizes, weight_by_size):\n    return max(values)\n",
    "tasks/unrelated.py": "X = 1\n",
    "tasks/own/tools.py": """\
from shared.limits import MOST

def marked(row):
    return {"answer": row["answer"] + "!"}

def documents(split):
    return split.map(marked).filter(lambda row: len(row["question"]) < MOST)
""",
    "tasks/shared/__init__.py": "LEVEL = 1\n",
    "tasks/shared/limits.py": "from .deep import DEPTH\nMOST = 40 + DEPTH\n",
    "tasks/shared/deep.py": "DEPTH = 0\n",
    "tasks/common/decorators.py": """\
def rounded(digits):
    def decorate(function):
        return lambda values: round(function(values), digits)
    return decorate

def made_by(index):
    return lambda doc: index
""",
    "tasks/made.py": """\
from base_task import Base, instance

class Made(Base):
    def __init__(self, config=None):
        super().__init__(config=config)
        self.level = (config or {}).get("level", 0)

    def doc_to_text(self, doc, *_):
        '''The prompt.'''
        return "Say " + doc["question"]
""",
    "tasks/base_task.py": """\
import datasets
from lm_eval.api.task import ConfigurableTask

class Base(ConfigurableTask):
    KEYS = ("class", "level")
    SCALE = 1

    def __init__(self, config=None):
        rows = [{"question": str(n), "answer": "x"} for n in range(4)]
        metric = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
        settings = {k: v for k, v in (config or {}).items() if k not in self.KEYS}
        settings |= {
            "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_target": "{{answer}}",
            "doc_to_text": "{{question}}",
            "metric_list": [metric],
        }
        super().__init__(config=settings)

def instance():
    return Base
""",
    "data/test.jsonl": '{"question": "one", "answer": "x"}\n{"question": "two", "answer": "y"}\n',
}
MINE = "tasks/mine.yaml"
CHOICE = "tasks/choice.yaml"
MADE = "tasks/made.yaml"
ALL = "tasks/all.yaml"
COMMON = "tasks/_common.yaml"
SCORING = "tasks/scoring.py"
HELPERS = "tasks/helpers.py"
BASE = "tasks/base_task.py"
DECORATORS = "tasks/common/decorators.py"
TOOLS = "tasks/own/tools.py"
CLASS = "tasks/made.py"
DATA = "data/test.jsonl"
Edit = tuple[str, str, str]
"""A file, a text in it, and what replaces it."""
EDITS: dict[str, Edit] = {
    # functions; what is edited in a file is the same to its digest
    "a function's sum": (SCORING, "worth(doc) + bonus()", "worth(doc) - bonus()"),
    "a filter of documents": (TOOLS, "< MOST", "<= MOST"),
    "another function": (MINE, "scoring.score", "scoring.worth"),
    "a function as a key's value": (
        MINE,
        "aggregation: !function scoring.center",
        "aggregation: mean",
    ),
    "an aggregation of groups": ("tasks/weights.py", "max(values)", "min(values)"),
    # imported modules
    "an imported constant": (HELPERS, "FACTOR = 1", "FACTOR = 2"),
    "a module that an imported one imports": ("tasks/chain.py", "x + 1", "x + 2"),
    "a module that a function imports": ("tasks/late.py", "return 0.0", "return 0.5"),
    "a module of a package": ("tasks/shared/limits.py", "MOST = 40", "MOST = 50"),
    "a package": ("tasks/shared/__init__.py", "LEVEL = 1", "LEVEL = 2"),
    "a relative import": ("tasks/shared/deep.py", "DEPTH = 0", "DEPTH = 1"),
    "a decorator": (DECORATORS, "round(function(values), digits)", "function(values)"),
    # classes
    "a class's prompt": (CLASS, '"Say "', '"Tell "'),
    "a base class's constant": (BASE, "SCALE = 1", "SCALE = 2"),
    "a class's key": (MADE, "level: 3", "level: 4"),
    "another class": (MADE, "made.Made", "made.Base"),
    # YAML
    "an included prompt": (COMMON, "Question: ", "Q: "),
    "a pattern": (MINE, '"(x)"', '"(y)"'),
    "the number of examples": (MINE, "num_fewshot: 0", "num_fewshot: 1"),
    "the version": (MINE, "{version: 1}", "{version: 3}"),
    "the order of choices": (CHOICE, '{a: "yes", b: "no"}', '{b: "no", a: "yes"}'),
    # groups
    "a group's weights": (ALL, "weight_by_size: false", "weight_by_size: true"),
    "a group's metric": (
        ALL,
        "  - metric: acc\n    aggregation",
        "  - metric: exact_match\n    aggregation",
    ),
    "an inner group's weights": (ALL, "weight_by_size: true}", "weight_by_size: false}"),
    "a group's version": (ALL, "{version: 2}", "{version: 4}"),
    "a group's tasks": (ALL, "  - mine\n", ""),
    "a group's own text for a task": (ALL, "Asked again.", "Asked once more."),
    # data
    "an answer": (DATA, '"answer": "y"', '"answer": "z"'),
    "a question": (DATA, '"question": "two"', '"question": "six"'),
    "a document": (DATA, '{"question": "two", "answer": "y"}\n', ""),
    "the order of documents": (
        DATA,
        FILES[DATA],
        "".join(reversed(FILES[DATA].splitlines(keepends=True))),
    ),
}
HARMLESS: dict[str, Edit | Callable[[Path], object]] = {
    "a comment": (SCORING, "# all answers are worth this", "# all answers are worth that"),
    "a docstring": (SCORING, "The score of one answer.", "What one answer scores."),
    "a method's docstring": (CLASS, "The prompt.", "What is asked."),
    "quotation marks": (SCORING, '"names"', "'names'"),
    "line breaks": (SCORING, '["a", "b"]', '[\n    "a",\n    "b",\n]'),
    "a comment in an imported module": ("tasks/chain.py", "def link", "# next\ndef link"),
    "a comment in YAML": (MINE, "# The questions.", "# Those questions."),
    "the order of keys": (
        MINE,
        "task: mine\ninclude: _common.yaml\n",
        "include: _common.yaml\ntask: mine\n",
    ),
    "key order in a list": (
        CHOICE,
        "metric: acc, aggregation: mean",
        "aggregation: mean, metric: acc",
    ),
    "the form of YAML": (CHOICE, '{a: "yes", b: "no"}', '\n  a: "yes"\n  b: "no"'),
    "a tag and a name to show": (
        MINE,
        "num_fewshot: 0",
        "num_fewshot: 0\ntag: mine_too\ntask_alias: Mine",
    ),
    "a group's name to show": (ALL, "group_alias: Everything", "group_alias: All"),
    "column order": (
        DATA,
        '{"question": "one", "answer": "x"}',
        '{"answer": "x", "question": "one"}',
    ),
    "a file that nothing imports": ("tasks/unrelated.py", "X = 1", "X = 2"),
    "a new file": lambda folder: (folder / "tasks" / "new.py").write_text("Y = 1\n"),
    "the time of a file": lambda folder: os.utime(folder / SCORING, (1, 1)),
    "a renamed file": lambda folder: (folder / MINE).rename(folder / "tasks" / "yours.yaml"),
    "a renamed folder": lambda folder: (folder / "tasks").rename(folder / "renamed"),
}


SECONDS = count()


def write(folder: Path, files: dict[str, str]) -> None:
    """YAML files with one modification time, which therefore shows no edit.

    Python recognizes an edited module by its time, in whole seconds, where it has
    stored bytecode of it, and `datasets` an edited file: each of these is a second newer
    than the one written before.
    """
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")
        changed = 10**9 if file.endswith(".yaml") else 10**9 + next(SECONDS)
        os.utime(folder / file, (changed, changed))


def replace_text(folder: Path, edit: Edit) -> None:
    file, old, new = edit
    text = (folder / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
    write(folder, {file: text.replace(old, new)})


@contextmanager
def modules_forgotten(folder: Path) -> Iterator[None]:
    """After the context the modules of a folder are not imported any more.

    Other folders have modules of the same names.
    """
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(folder)):
                del sys.modules[name]


@pytest.fixture(scope="module")
def run_ids(
    tiny_olmoe_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[str]]:
    """The ids of a run of the group, in a new folder and in one process.

    They are taken after some of the edits above, and after more of them.
    """

    def identified(*all_edits: tuple[str, ...]) -> list[str]:
        folder = tmp_path_factory.mktemp("own")
        write(folder, FILES)
        with pytest.MonkeyPatch.context() as patch, modules_forgotten(folder):
            # it names a prepared file by path and time,
            # which are those of another content in an earlier session
            patch.setattr("datasets.config.HF_DATASETS_CACHE", str(folder / "cache"))
            # lm-eval's own index, which groups are looked up in, takes seconds to read
            patch.setattr(
                task_index,
                "_full_index",
                lambda path: TaskManager(include_path=path, include_defaults=False),
            )
            return [one_id(folder, names, patch) for names in all_edits]

    def one_id(folder: Path, names: tuple[str, ...], patch: pytest.MonkeyPatch) -> str:
        for name in names:
            edit = (EDITS | HARMLESS)[name]
            if callable(edit):
                edit(folder)
            else:
                replace_text(folder, edit)
        tasks = folder / "renamed" if (folder / "renamed").exists() else folder / "tasks"
        group = TaskConfig(name="all", include_path=str(tasks))
        run_config = config(tiny_olmoe_dir, folder, folder, task_config=group)
        run_config.data_dir = None
        patch.syspath_prepend(tasks)
        with task_cache():
            return prepare(run_config).run_id

    return identified


@pytest.fixture(scope="module")
def run_id(run_ids: Callable[..., list[str]]) -> Callable[..., str]:
    """The id of a run of the group in a new folder, with some of the edits above."""

    @cache
    def identified(*names: str) -> str:
        [found_id] = run_ids(names)
        return found_id

    return identified


FAST = (
    "a function's sum",
    "a module that a function imports",
    "a relative import",
    "a base class's constant",
)


@pytest.mark.parametrize("name", (*FAST, "an included prompt", "a group's weights", "an answer"))
def test_an_edit_is_another_run(run_id, name):
    assert run_id(name) != run_id()


@pytest.mark.slow
def test_each_edit_is_another_run(run_id):
    ids = {name: run_id(name) for name in EDITS} | {"none": run_id()}
    assert len(set(ids.values())) == len(ids), ids


@pytest.mark.parametrize(
    "name", (*first_fast((*FAST, "an imported constant", "a decorator"), 3), "an answer")
)
def test_an_edit_between_two_commands_of_a_process_has_the_id_of_a_new_process(
    name, run_id, run_ids
):
    """A running notebook.

    Broken by modules, and digests of them, that stay as they were when they were imported.
    """
    assert run_ids((), (name,)) == [run_id(), run_id(name)]


@pytest.mark.slow
def test_a_running_process_computes_with_the_edited_code(tmp_path, monkeypatch, capsys):
    write(tmp_path, FILES)
    monkeypatch.syspath_prepend(tmp_path / "tasks")
    task = ["task=lm_eval", "task.name=mine", f"task.include_path={tmp_path / 'tasks'}"]
    edits = (
        None,
        EDITS["an imported constant"],
        EDITS["a function's sum"],
        (TOOLS, '+ "!"', '+ "??"'),
    )
    scores = []
    with modules_forgotten(tmp_path):
        for edit in edits:
            if edit is not None:
                replace_text(tmp_path, edit)
            ended = run_command(
                capsys, "method=base", *task, f"output_dir={tmp_path}", "offline=true", "device=cpu"
            )
            assert ended.code == 0, ended.err
            results = json.loads(Path(ended.out.split()[-1]).read_text())["results"]
            scores.append(results["mine"]["worth,first"])
    assert scores == pytest.approx([1.8, 3.6, 3.6, 4.8])
    assert len(list((tmp_path / "runs").iterdir())) == 4


def test_harmless_edits_are_the_same_run(run_id):
    """All at once."""
    assert run_id(*HARMLESS) == run_id()


@pytest.mark.slow
def test_the_command_shows_the_score_of_the_edited_task(tmp_path, monkeypatch):
    """Stored answers, documents that `datasets` has read, and mapped rows predate the edit."""
    write(tmp_path, FILES)
    monkeypatch.syspath_prepend(tmp_path / "tasks")

    def score(edit: Edit | None = None) -> float:
        if edit is not None:
            replace_text(tmp_path, edit)
        task = ["task=lm_eval", "task.name=mine", f"task.include_path={tmp_path / 'tasks'}"]
        place = [f"output_dir={tmp_path}", "offline=true", "device=cpu"]
        ended = run_forked(tmp_path, "method=base", *task, *place)
        assert ended.code == 0, ended.err
        return json.loads(Path(ended.out.split()[-1]).read_text())["results"]["mine"]["worth,first"]

    assert score() == pytest.approx(1.8), (
        "0.6 for each letter of an answer, one of which is mapped to it, and for its end"
    )
    assert score(EDITS["an imported constant"]) == pytest.approx(3.6)
    assert score((DATA, '"y"', '"yyy"')) == pytest.approx(4.8)
    assert score((TOOLS, '+ "!"', '+ "??"')) == pytest.approx(6.0)
    assert len(list((tmp_path / "runs").iterdir())) == 4
