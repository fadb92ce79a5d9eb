"""Messages of libraries that say nothing about a run."""

import logging


def hide_kernel_messages() -> None:
    """Hide what torchao and torch say on import about kernels that this machine does not need."""
    for library in ("torchao", "torch.utils._pytree"):
        logging.getLogger(library).setLevel(logging.ERROR)
