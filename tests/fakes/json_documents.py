"""JSON files, changed where they are."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def change_documents(folder: Path, pattern: str) -> Iterator[Any]:
    """Yield each document, and write it with what the loop has changed in it."""
    for path in folder.glob(pattern):
        document = json.loads(path.read_text())
        yield document
        path.write_text(json.dumps(document))
