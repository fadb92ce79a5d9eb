"""`python -m moe_lab`: see `python -m moe_lab --help`."""

import sys

from moe_lab.app import main

if __name__ == "__main__":
    sys.exit(main())
