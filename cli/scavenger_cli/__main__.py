"""`python -m scavenger_cli`."""

import sys

from scavenger_cli.main import main

sys.exit(main())
