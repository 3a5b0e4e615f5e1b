"""`python -m kvplan`."""

from __future__ import annotations

import sys

from kvplan.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
