"""``python -m detmode`` is the command ``detmode``."""

import sys

from detmode.cli.parser import main

sys.exit(main())
