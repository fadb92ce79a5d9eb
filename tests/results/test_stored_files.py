"""Files that a run writes next to its results.

Broken by: numbers of another run, another commit of the hub or another version of the file that are
taken for those of a run.
"""

import json

import pytest

from moe_lab.results.stored_files import content_of_run

OF_RUN = {"run_id": "0a1b2c3d", "commit": "f00d", "schema_version": 1}


@pytest.mark.parametrize(
    "other", [{"run_id": "0a1b2c3e"}, {"commit": "beef"}, {"commit": None}, {"schema_version": 2}]
)
def test_a_file_of_another_run_is_not_taken(other, tmp_path):
    file = tmp_path / "numbers.json"
    assert content_of_run(file, **OF_RUN) is None, "there is none"
    file.write_text(json.dumps({**OF_RUN, "value": 3}))
    assert content_of_run(file, **OF_RUN) == {**OF_RUN, "value": 3}
    assert content_of_run(file, **(OF_RUN | other)) is None
