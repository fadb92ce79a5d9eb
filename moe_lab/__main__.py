"""`python -m moe_lab`: see `python -m moe_lab --help`."""

import gc
import sys

from moe_lab.cli.main import main

if __name__ == "__main__":
    gc.set_threshold(10_000)  # imports make many objects that stay: a tenth of a plan's time
    sys.exit(main())
