"""python -m kvviz: the command line."""

import sys

from kvviz.cli import main

sys.exit(main())
