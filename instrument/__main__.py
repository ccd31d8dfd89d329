"""python -m headcheck."""

import sys

from headcheck.command import main

sys.exit(main())
