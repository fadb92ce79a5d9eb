"""`tuning.storage`. Broken by: a password in a message or in what is stored, a database that ends with the process."""

import pytest
from sqlalchemy.exc import SQLAlchemyError

from moe_lab.errors import ConfigError, ResultsError
from moe_lab.runs.tuning.study import check_url, refuse_typed_password
from moe_lab.runs.tuning.trials import storage_errors
from tests.support.command import run_command

SECRETS = [
    "nodb://me:hidden@host/db",
    "nodb://me:hid/den@host/db",
    "nodb://me:p@hidden@host/db",
    "nodb://host/db?password=hidden",
    "nodb://host/db?PASSWD=hidden",
    "nodb://host/db?sslpassword=hidden&charset=utf8",
    "me:hidden/x@host",
]


@pytest.mark.parametrize("storage", SECRETS)
def test_a_password_is_in_no_message(storage, tmp_path, capsys, monkeypatch):
    with pytest.raises(ResultsError) as failed, storage_errors(tmp_path, storage):
        raise SQLAlchemyError("no route to host")
    ended = run_command(capsys, "tuning=tpe", f"tuning.storage='{storage}'", f"output_dir={tmp_path}/out")
    monkeypatch.setenv("STORAGE", storage)
    keys = ["tuning=tpe", "model=tiny", "task=toy_math", "tuning.storage=${oc.env:STORAGE}"]
    by_environment = run_command(capsys, *keys, "limit=2")
    assert ended.code == by_environment.code == 2
    assert "tuning.storage" in ended.err and "tuning.storage" in by_environment.err
    for text in (str(failed.value), ended.err, by_environment.err):
        assert "hid" not in text and "den" not in text


def test_a_url_without_a_typed_password_passes():
    for storage in (
        "${oc.env:STORAGE}",
        "postgresql://me:${oc.env:PW}@host/db",
        "nodb://h/d?password=${oc.env:PW}",
    ):
        refuse_typed_password(storage)
    check_url("sqlite:///study.db")
    with pytest.raises(ConfigError, match=r"Use a URL as postgresql://host/optuna"):
        check_url("a plain word")


@pytest.mark.parametrize(
    "storage", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:a?mode=memory&uri=true"]
)
def test_a_database_in_memory_is_refused(storage, capsys):
    ended = run_command(capsys, "tuning=tpe", "task=toy_math", f"tuning.storage='{storage}'", "limit=2")
    assert ended.code == 2 and "is in memory" in ended.err
