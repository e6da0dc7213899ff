"""``python -m fastshard``: the command line."""

import sys

from fastshard.cli.parser import main

if __name__ == "__main__":
    sys.exit(main())
