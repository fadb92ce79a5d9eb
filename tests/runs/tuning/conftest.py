"""Local data of three tasks with documents to tune on."""

import pytest

from tests.support.runs import choices, sums, worked_sums, write_jsonl


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / "addsub" / "test.jsonl", sums(12))
    write_jsonl(folder / "arc_easy" / "test.jsonl", choices(10))
    write_jsonl(folder / "arc_easy" / "validation.jsonl", choices(9, start=50))
    write_jsonl(folder / "gsm8k" / "test.jsonl", worked_sums(5))
    write_jsonl(folder / "gsm8k" / "train.jsonl", worked_sums(20, start=5))
    return folder
