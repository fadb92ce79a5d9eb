"""Which checkpoint of OLMoE the cells of each paper take.

Broken by: a cell of one paper on another one's checkpoint, an option that names another repository, a source that does
not say which checkpoint it is.
"""

import re

import pytest
import yaml

from moe_lab.config.catalog import resource_folder

OF_PAPER = {
    "roe": ("olmoe", "OLMoE-1B-7B-0924-Instruct"),
    "moe_bench": ("olmoe-base", "OLMoE-1B-7B-0924"),
    "c3po": ("olmoe-0125-instruct", "OLMoE-1B-7B-0125-Instruct"),
}
"""Folder of experiments -> option, repository of allenai."""


def options_in(text: str) -> set[str]:
    text = re.sub(r"method\.backbone: \[.*?\]", "", text)  # an architecture, which bears the model's name
    return set(re.findall(r"(?<![\w/-])olmoe(?:-[a-z0-9]+)*(?![\w-])", text))


@pytest.mark.parametrize("paper", OF_PAPER)
def test_every_cell_takes_its_papers_checkpoint(paper):
    option, repository = OF_PAPER[paper]
    named = 0
    for file in sorted((resource_folder("experiments") / paper).glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        assert options_in(text) <= {option}, file
        if options_in(text) and f"{paper}/{file.stem}" != "roe/table1":
            assert re.search(rf"{repository}(?![\w-])", yaml.safe_load(text)["source"]), file
            named += 1
    assert named > 5


@pytest.mark.parametrize("option, repository", OF_PAPER.values())
def test_options_name_their_repositories(option, repository):
    conf = yaml.safe_load((resource_folder("conf") / "model" / f"{option}.yaml").read_text(encoding="utf-8"))
    assert (conf["name"], conf["path"]) == (option, f"allenai/{repository}")
