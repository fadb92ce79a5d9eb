"""Where results are shown beside the output folder: nowhere, or in W&B. Files stay the truth."""

from moe_lab.loggers.logger import Logger, open_logger

__all__ = ["Logger", "open_logger"]
