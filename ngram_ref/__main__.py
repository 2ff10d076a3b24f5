"""`python -m ngram_ref`."""

import sys

from ngram_ref.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
