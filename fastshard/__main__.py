"""``python -m fastshard``: the command line."""

import sys

from fastshard.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
