"""Loads weights into memory without a second copy.

transformers maps safetensors files and reads ahead in threads. On a CPU that keeps up to two copies in memory: pages of
the files, and the tensors made from them (fused experts have to be copied). Inside `reading_once` it reads one tensor
after the other from the file, so that memory holds the model and the parts of one fused parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import safetensors
from transformers import modeling_utils

SEQUENTIAL = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' environment variable that disables reading ahead."""


@contextmanager
def reading_once() -> Iterator[None]:
    """Inside the context, `from_pretrained` reads tensors one after the other and maps no files."""
    before, mapped = os.environ.get(SEQUENTIAL), modeling_utils.safe_open
    os.environ[SEQUENTIAL] = "1"
    modeling_utils.safe_open = _open_unmapped
    try:
        yield
    finally:
        modeling_utils.safe_open = mapped
        os.environ.pop(SEQUENTIAL)
        if before is not None:
            os.environ[SEQUENTIAL] = before


def _open_unmapped(file: str, **options: Any) -> safetensors.safe_open:
    return safetensors.safe_open(file, **(options | {"backend": "pread"}))
