"""`python -m moe_lab`: see `python -m moe_lab --help`."""

import sys

from moe_lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
