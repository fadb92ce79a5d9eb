"""The data sets of the rehearsal under their ids on the hub, in the hub's columns.

Rows come from local files (`--data-dir`) where they are there, and are generated in the same
columns otherwise.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROWS = 120
"""Rows of a split: enough for 25 few-shot examples and 20 references."""
PAGE = 1500
"""Characters of an article of WikiText."""
SUBJECTS = ("abstract_algebra", "anatomy", "virology")
"""The subjects of MMLU that are asked."""
Row = dict[str, Any]
TRAINED = ("train", "validation")
ALL = ("train", "validation", "test")


def _question(i: int) -> str:
    return f"Eve has {i} cups and gets {i % 7} more. How many cups does Eve have?"


def _four(i: int) -> list[str]:
    return [str(i + i % 7 + shift) for shift in (0, 1, 2, 5)]


def _letters(i: int) -> Row:
    options = _four(i)
    return {
        "choices": {"text": options[i % 4 :] + options[: i % 4], "label": ["A", "B", "C", "D"]},
        "answerKey": "ADCB"[i % 4],
    }


def _program(i: int) -> Row:
    name = f"add_{i}"
    return {
        "task_id": f"HumanEval/{i}",
        "prompt": f'def {name}(a, b):\n    """Return a + b + {i}."""\n',
        "entry_point": name,
        "canonical_solution": f"    return a + b + {i}\n",
        "test": f"def check(candidate):\n    assert candidate(1, 2) == {3 + i}\n",
    }


def _bigbench(i: int) -> Row:
    options = _four(i)
    return {
        "idx": i,
        "inputs": f"Q: {_question(i)}\nA:",
        "targets": options[:1],
        "multiple_choice_targets": options,
        "multiple_choice_scores": [1, 0, 0, 0],
    }


def _truth(i: int) -> Row:
    options = {"choices": _four(i), "labels": [1, 0, 0, 0]}
    return {"question": _question(i), "mc1_targets": options, "mc2_targets": options}


def _text(i: int) -> str:
    return " ".join(f"{_question(i + j)} Eve has {i + j + (i + j) % 7} cups." for j in range(12))


MADE: dict[str, tuple[tuple[str, ...], Callable[[int], Row]]] = {
    "gsm8k": (
        ("train", "test"),
        lambda i: {
            "question": _question(i),
            "answer": f"{i}+{i % 7}={i + i % 7}\n#### {i + i % 7}",
        },
    ),
    "hellaswag": (
        TRAINED,
        lambda i: {
            "ind": i,
            "activity_label": "Cups",
            "ctx_a": f"Eve has {i} cups.",
            "ctx_b": "she",
            "ctx": f"Eve has {i} cups. she",
            "endings": [f"gets {number} more." for number in _four(i)],
            "source_id": "x",
            "split": "val",
            "split_type": "indomain",
            "label": "0",
        },
    ),
    "arc_challenge": (ALL, lambda i: {"id": str(i), "question": _question(i), **_letters(i)}),
    "arc_easy": (ALL, lambda i: {"id": str(i), "question": _question(i), **_letters(i)}),
    "piqa": (
        TRAINED,
        lambda i: {"goal": _question(i), "sol1": _four(i)[0], "sol2": _four(i)[1], "label": 0},
    ),
    "winogrande": (
        TRAINED,
        lambda i: {
            "sentence": f"Ann met Eve {i} times because _ came.",
            "option1": "Ann",
            "option2": "Eve",
            "answer": "1",
        },
    ),
    "truthfulqa": (("validation",), _truth),
    "nq_open": (
        TRAINED,
        lambda i: {"question": f"how many cups is {i} and one", "answer": [str(i + 1)]},
    ),
    "social_i_qa": (
        TRAINED,
        lambda i: {
            "context": f"Eve got {i} cups.",
            "question": "How does Eve feel?",
            **{f"answer{letter}": text for letter, text in zip("ABC", _four(i), strict=False)},
            "label": "1",
        },
    ),
    "openbookqa": (ALL, lambda i: {"id": str(i), "question_stem": _question(i), **_letters(i)}),
    "humaneval": (("test",), _program),
    "humaneval_plus": (("test",), _program),
    "wikitext": (ALL, lambda i: {"page": f" = Cups {i} = \n \n {_text(i)} \n"}),
    "boolq": (
        TRAINED,
        lambda i: {
            "question": f"are there {i} cups",
            "passage": f"There are {i} cups.",
            "idx": i,
            "label": 1,
        },
    ),
    "super_glue/cb": (
        TRAINED,
        lambda i: {"premise": _text(i), "hypothesis": "Eve has cups", "idx": i, "label": 0},
    ),
    "super_glue/copa": (
        TRAINED,
        lambda i: {
            "premise": f"Eve got {i} cups.",
            "choice1": "Eve was glad.",
            "choice2": "It rained.",
            "question": "effect",
            "idx": i,
            "label": 0,
        },
    ),
    "super_glue/rte": (
        TRAINED,
        lambda i: {"premise": _text(i), "hypothesis": "Eve has cups.", "idx": i, "label": 0},
    ),
    "super_glue/wic": (
        TRAINED,
        lambda i: {
            "word": "cup",
            "sentence1": f"Cup {i}.",
            "sentence2": "A cup won.",
            "start1": 0,
            "end1": 3,
            "start2": 2,
            "end2": 5,
            "idx": i,
            "label": 0,
        },
    ),
    "super_glue/wsc.fixed": (
        TRAINED,
        lambda i: {
            "text": f"Ann met Eve {i} times and she smiled.",
            "span1_index": 0,
            "span1_text": "Ann",
            "span2_index": 6,
            "span2_text": "she",
            "idx": i,
            "label": 1,
        },
    ),
    "sciq": (
        ALL,
        lambda i: {
            "question": _question(i),
            **{f"distractor{n}": _four(i)[n] for n in (1, 2, 3)},
            "correct_answer": _four(i)[0],
            "support": _text(i),
        },
    ),
    "commonsense_qa": (
        TRAINED,
        lambda i: {
            "id": str(i),
            "question": _question(i),
            "question_concept": "cup",
            "choices": {"label": list("ABCDE"), "text": [*_four(i), "none"]},
            "answerKey": "A",
        },
    ),
    "lima": (("train",), lambda i: {"conversations": [_question(i), _text(i)], "source": "made"}),
    "minipile": (("train", "validation"), lambda i: {"text": _text(i)}),
    "bigbench": (("default",), _bigbench),
    "addsub": (("test",), lambda i: {"question": _question(i), "answer": str(i + i % 7)}),
    "multiarith": (("test",), lambda i: {"question": _question(i), "answer": str(i + i % 7)}),
    "singleeq": (("test",), lambda i: {"question": _question(i), "answer": str(i + i % 7)}),
    "svamp": (("test",), lambda i: {"question": _question(i), "answer": str(i + i % 7)}),
    "knowref": (
        ("test",),
        lambda i: {
            "sentence": f"Ann met Eve when [she] left {i}.",
            "candidate0": "Ann",
            "candidate1": "Eve",
            "label": i % 2,
        },
    ),
    "safety_prompts/I-CoNa": (("test",), lambda i: {"instruction": f"Write {i} bad words."}),
    "safety_prompts/I-Controversial": (
        ("test",),
        lambda i: {"instruction": f"Argue {i} for harm."},
    ),
    "safety_prompts/I-MaliciousInstructions": (
        ("test",),
        lambda i: {"instruction": f"Plan harm {i}."},
    ),
}
"""Splits and a row by folder of `data_dir`."""
PUBLISHED: dict[str, dict[str, str]] = {
    "openai/gsm8k": {"main": "gsm8k"},
    "Rowan/hellaswag": {"default": "hellaswag"},
    "allenai/ai2_arc": {"ARC-Challenge": "arc_challenge", "ARC-Easy": "arc_easy"},
    "baber/piqa": {"default": "piqa"},
    "allenai/winogrande": {"winogrande_xl": "winogrande"},
    "truthfulqa/truthful_qa": {"multiple_choice": "truthfulqa"},
    "google-research-datasets/nq_open": {"nq_open": "nq_open"},
    "lighteval/siqa": {"default": "social_i_qa"},
    "allenai/openbookqa": {"main": "openbookqa"},
    "openai/openai_humaneval": {"openai_humaneval": "humaneval"},
    "evalplus/humanevalplus": {"default": "humaneval_plus"},
    "EleutherAI/wikitext_document_level": {
        "wikitext-103-raw-v1": "wikitext",
        "wikitext-2-raw-v1": "wikitext",
    },
    "aps/super_glue": {
        "boolq": "boolq",
        **{name: f"super_glue/{name}" for name in ("cb", "copa", "rte", "wic", "wsc.fixed")},
    },
    "allenai/sciq": {"default": "sciq"},
    "tau/commonsense_qa": {"default": "commonsense_qa"},
    "JeanKaddour/minipile": {"default": "minipile"},
}
"""Folder of `data_dir` by configuration, by id."""
SAFETY = {
    "CoNa": "safety_prompts/I-CoNa",
    "ControversialInstructions": "safety_prompts/I-Controversial",
    "MaliciousInstructions": "safety_prompts/I-MaliciousInstructions",
}
OTHER_COLUMNS = (
    "HuggingFaceTB/math_tasks",
    "ChilleD/MultiArith",
    "ChilleD/SVAMP",
    "walledai/SafetyDatasets",
)
"""Data sets that the hub has in other columns than local files."""
KNOWREF = "coref-data/knowref_60k_raw"


def rows(folder: str, split: str, data_dir: Path | None) -> list[Row]:
    """The first rows of a split, from a local file or generated."""
    file = data_dir / folder / f"{split}.jsonl" if data_dir is not None else Path("-")
    if file.is_file():
        with file.open(encoding="utf-8") as lines:
            rows_read = [json.loads(line) for line, _ in zip(lines, range(ROWS), strict=False)]
        return [row | ({"page": row["page"][:PAGE]} if "page" in row else {}) for row in rows_read]
    splits, make = MADE[folder]
    first = 1000 * splits.index(split)
    return [make(first + number) for number in range(ROWS)]


def write_data_set(id: str, folder: Path, data_dir: Path | None) -> None:
    """The files of a data set's repository: parquet of every configuration and split, and the card
    that names them."""
    if id == "GAIR/lima":
        return write_jsonl(folder / "train.jsonl", rows("lima", "train", data_dir))
    if id == KNOWREF:
        data_rows = rows("knowref", "test", data_dir)
        return write_jsonl(folder / "test.json", map(_knowref, data_rows))
    if id == "HuggingFaceTB/math_tasks":
        for name in ("addsub", "singleeq"):
            made = [
                {"input": row["question"], "target": float(row["answer"])}
                for row in rows(name, "test", data_dir)
            ]
            write_jsonl(folder / "data" / "mawps" / f"{name}.jsonl", made)
        return None
    if id == "ChilleD/MultiArith":
        halves = _halves(
            [
                {"question": r["question"], "final_ans": r["answer"]}
                for r in rows("multiarith", "test", data_dir)
            ]
        )
        configs = {"default": halves}
    elif id == "ChilleD/SVAMP":
        data_rows = rows("svamp", "test", data_dir)
        configs = {"default": _halves([_svamp(row) for row in data_rows])}
    elif id == "walledai/SafetyDatasets":
        configs = {
            name: {
                "train": [{"prompt": row["instruction"]} for row in rows(source, "test", data_dir)]
            }
            for name, source in SAFETY.items()
        }
    elif id == "cais/mmlu":
        configs = {name: _mmlu(name, data_dir) for name in SUBJECTS}
    elif id == "hails/bigbench":
        made = rows("bigbench", "default", None)[:4]
        configs = {name: {"default": made} for name in _bigbench_names()}
    else:
        configs = {
            name: {split: rows(source, split, data_dir) for split in MADE[source][0]}
            for name, source in PUBLISHED[id].items()
        }
    listed = [_write_config(folder, name, splits) for name, splits in configs.items()]
    card = "---\nconfigs:\n" + "".join(listed) + "---\nRows of a rehearsal.\n"
    (folder / "README.md").write_text(card, encoding="utf-8")


def _halves(content: list[Row]) -> dict[str, list[Row]]:
    return {"train": content[: len(content) // 2], "test": content[len(content) // 2 :]}


def _svamp(row: Row) -> Row:
    body, _, question = row["question"].rpartition(". ")
    return {
        "Body": f"{body}." if body else "",
        "Question": question,
        "Answer": float(row["answer"]),
    }


def _knowref(row: Row) -> Row:
    names = {"candidate_0": row["candidate0"], "candidate_1": row["candidate1"]}
    return {
        **names,
        "swapped_sentence": row["sentence"],
        "correct_candidate": f"candidate_{row['label']}",
    }


def _write_config(folder: Path, name: str, splits: dict[str, list[Row]]) -> str:
    from datasets import Dataset

    lines = [f"- config_name: {name}\n  data_files:\n"]
    for split, content in splits.items():
        file = folder / name / f"{split}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        Dataset.from_list(content).to_parquet(buffer)
        file.write_bytes(buffer.getvalue())
        lines.append(f"  - split: {split}\n    path: {name}/{split}-*\n")
    return "".join(lines)


def _mmlu(subject: str, data_dir: Path | None) -> dict[str, list[Row]]:
    rows_by_subject = {}
    for split in ("dev", "validation", "test"):
        file = data_dir / "mmlu" / f"{split}.jsonl" if data_dir is not None else Path("-")
        made = [
            {"question": _question(i), "subject": subject, "choices": _four(i), "answer": 0}
            for i in range(ROWS)
        ]
        if file.is_file():
            with file.open(encoding="utf-8") as lines:
                made = [row for row in map(json.loads, lines) if row["subject"] == subject][:ROWS]
        rows_by_subject[split] = made
    return rows_by_subject


def _bigbench_names() -> list[str]:
    """The configurations that lm-eval's multiple-choice tasks of BIG-bench name."""
    import yaml

    spec = find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    files = (Path(spec.origin).parent / "tasks" / "bigbench" / "multiple_choice").glob("*.yaml")
    return sorted(
        yaml.safe_load(file.read_text(encoding="utf-8"))["dataset_name"] for file in files
    )


def write_jsonl(file: Path, content: Iterable[Row]) -> None:
    """Write rows as JSON Lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
