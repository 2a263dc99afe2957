"""`python -m millpond.service SOCKET`: the state service's process."""

import sys
from pathlib import Path

from millpond.service.server import serve

serve(Path(sys.argv[1]))
