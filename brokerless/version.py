"""The kit's version, and how its commits sign themselves."""

from typing import Final

VERSION: Final = "0.1.0"
ENGINE: Final = f"brokerless/{VERSION}"
