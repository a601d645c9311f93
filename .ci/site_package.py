"""A hook of MkDocs: the API pages describe the sources of this checkout, whichever way it was installed.

setup.cfg puts the package together from three folders. An installation with `-e` has them where they are, and what
reads the sources without importing them does not find `tfdp_layers.accounting`.
"""

import shutil
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority


@event_priority(100)  # before mkdocstrings reads where the package is
def on_config(config: Any) -> Any:
    """Copies the three folders into one package below build/, and has mkdocstrings look there."""
    root = Path(config.config_file_path).parent
    package = root / "build" / "package" / "tfdp_layers"
    shutil.rmtree(package.parent, ignore_errors=True)
    for folder, target in (("tfdp_layers", package), *((name, package / name) for name in ("accounting", "callbacks"))):
        shutil.copytree(root / folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [str(package.parent)]
    return config
