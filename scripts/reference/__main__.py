"""Write the reference pages to a folder: python -m scripts.reference FOLDER."""

import sys
from pathlib import Path

from scripts.reference.pages import write

print("\n".join(str(path) for path in write(Path(sys.argv[1]))))
