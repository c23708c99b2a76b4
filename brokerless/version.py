"""The kit's version, and how its commits sign themselves."""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing costs its import, and this module is the first that is loaded
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "0.1.0"
ENGINE: Final = f"brokerless/{VERSION}"
