"""Where this Python and its Spark are installed, found without importing either."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from message_lifecycle.model.errors import Unavailable


def venv_bin() -> Path:
    """The folder of this interpreter's scripts; not resolved, for the link is what makes it the virtual environment's."""
    return Path(sys.executable).parent


def venv_python() -> Path:
    """The interpreter that Spark's driver and workers are to use: this one."""
    return Path(sys.executable)


def package_folder(name: str) -> Path:
    """The folder of an installed package; says what to install when it is not there."""
    found = importlib.util.find_spec(name)
    if found is None or not found.origin:
        raise Unavailable(f"the package {name} is not installed in {sys.prefix}. Run `make` in the project, or install requirements.txt.")
    return Path(found.origin).parent


def spark_home() -> Path:
    """The Spark that comes with the installed pyspark."""
    return package_folder("pyspark")
