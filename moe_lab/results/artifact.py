"""Artifacts that runs share: a trained model, an adapter, a set of references, a profile.

The record, a JSON file with the artifact's id, is written last. After a kill the same command makes
the artifact again, or continues from its scratch folder.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.config.progress import naming
from moe_lab.results.atomic import write_json
from moe_lab.results.folder import RunFolder
from moe_lab.results.stored_files import whole_mapping


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A folder that is complete if its record exists, is undamaged and has this id."""

    folder: Path
    id: str
    """SHA-256 of what determines the content."""
    record: str
    """File name of the record."""
    scratch: str | None = None
    """Folder inside that a killed command continues from; removed when the record is written."""

    def stored(self) -> dict[str, Any] | None:
        """The record; None if it is missing, damaged, of another id, or not whole."""
        content = whole_mapping(self.folder / self.record) or {}
        if content.get("id") == self.id and self.is_whole(content):
            return content
        return None

    def is_whole(self, content: dict[str, Any]) -> bool:
        """Whether the record has its keys, and the other files exist."""
        return True

    def load_or_make(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The record; made by `make()`, which writes the other files and returns the record's
        content.

        The folder is held meanwhile. Raises RunHeldError if another process makes it.
        """
        record = self.stored()
        if record is None:
            folder = RunFolder(self.folder, self.id)
            with folder.held():
                record = self.stored()  # another process may have made it meanwhile
                if record is None:
                    record = self._made(folder, make)
        if self.scratch is not None:
            shutil.rmtree(self.folder / self.scratch, ignore_errors=True)
        return record

    def _made(self, folder: RunFolder, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Make the artifact in the held folder; returns the record, which is written last."""
        file = self.folder / self.record
        file.unlink(missing_ok=True)
        with folder.status(), naming(self.folder.name):
            record = {"id": self.id, **make()}
            write_json(file, record)
        return record
