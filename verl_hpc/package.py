"""The version and the place of this package, for modules that must not import its face."""

from pathlib import Path

VERSION = "0.1.0"
FOLDER = Path(__file__).parent
"""The directory of the package; its parent is what PYTHONPATH needs."""
