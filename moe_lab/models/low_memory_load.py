"""Reading weights into memory once.

transformers maps safetensors files and reads ahead in threads. On a CPU that keeps up to two copies resident: pages of
the files, and the tensors made from them (fused experts have to be copied). Inside `reading_once` it reads each tensor
from the file when its turn comes, so that what is resident is the model and the parts of one fused parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import safetensors
from transformers import modeling_utils

NOT_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' own switch for reading in turn."""


@contextmanager
def reading_once() -> Iterator[None]:
    """Inside the context, `from_pretrained` reads tensors in turn and without mapping files."""
    asked, mapped = os.environ.get(NOT_AHEAD), modeling_utils.safe_open
    os.environ[NOT_AHEAD] = "1"
    modeling_utils.safe_open = _open_unmapped
    try:
        yield
    finally:
        modeling_utils.safe_open = mapped
        os.environ.pop(NOT_AHEAD)
        if asked is not None:
            os.environ[NOT_AHEAD] = asked


def _open_unmapped(file: str, **options: Any) -> safetensors.safe_open:
    return safetensors.safe_open(file, **(options | {"backend": "pread"}))
