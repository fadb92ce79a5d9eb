"""The URL in `tuning.storage`: whether it names a database that lasts, and how it is shown without its password."""

from __future__ import annotations

import re

from sqlalchemy.engine import URL, make_url

from moe_lab.errors import ConfigError, reading

SECRET = re.compile("pass|pwd|secret|token", re.IGNORECASE)
"""In names of a URL's options: password, passwd, pwd, sslpassword."""
USE = "Use a URL as postgresql://host/optuna (docs/tuning.md)."


def check_url(storage: str) -> None:
    """Raise ConfigError for what is no URL of a database, a driver that is not installed, or a database in memory."""
    shown = shown_url(storage)
    with reading(f"tuning.storage={shown}", USE, says="cannot be used"):
        url = make_url(storage)
        url.get_dialect().import_dbapi()
        if url.get_backend_name() == "sqlite" and "memory" in str((url.database or ":memory:", url.query)):
            raise ValueError("this database is in memory, and lost when the process ends")


def shown_url(storage: str) -> str:
    """The URL without its password; `...` if it is none, because any part of it may be a password."""
    if (url := _parsed(storage)) is None:
        return "..."
    hidden = dict.fromkeys(filter(SECRET.search, url.query), "***")
    host = url.host and url.host.rpartition("@")[2]  # a password may have an @ of its own
    return url.set(host=host).update_query_dict(hidden).render_as_string(hide_password=True)


def refuse_typed_password(storage: str) -> None:
    """Raise ConfigError for a password that was typed, because overrides are stored with every run."""
    url = _parsed(storage)
    secrets = (
        [storage] if url is None else [url.password, *map(url.query.get, filter(SECRET.search, url.query))]
    )
    if any(secret and not str(secret).startswith("${") for secret in secrets):
        raise ConfigError(
            f"tuning.storage has a password{' or is no URL' if url is None else ''}, and it would be stored with every "
            "run.\nGive the URL by an environment variable: 'tuning.storage=${oc.env:STORAGE}'."
        )


def _parsed(storage: str) -> URL | None:
    try:
        return make_url(storage)
    except Exception:  # no URL, which `check_url` reports
        return None
