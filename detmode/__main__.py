"""``python -m detmode`` is the command ``detmode``."""

import sys

from detmode.cli import main

sys.exit(main())
