"""`python -m millpond.service SOCKET DIRECTORY`: the state service's process."""

import sys
from pathlib import Path

from millpond.service.server import serve

serve(Path(sys.argv[1]), Path(sys.argv[2]))
