"""What the verbs that read messages have in common: their options, and where they begin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokerless.errors import ConfigError
from brokerless.offsets import START_HELP, SavedPosition, parse_start

if TYPE_CHECKING:
    from brokerless.offsets import Start

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]

FROM_HELP = f"Where to begin: {START_HELP}; or @FILE with the output of export --json, to continue there."
UNTIL_HELP = "Where to end, exclusively, as for --from: at an offset, or before the first commit at or after a time."
REWRITES_HELP = "Continue if another engine deleted or updated rows; unchanged rows of the same files are read again."


def start_of(text: str) -> Start | SavedPosition:
    """Return the start that ``--from`` names: a position, or ``@FILE``."""
    if not text.startswith("@"):
        return parse_start(text)
    try:
        return SavedPosition.parse(Path(text[1:]).read_text(encoding="utf-8"), source=text[1:])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"Cannot read the position in {text[1:]} ({getattr(error, 'strerror', None) or error}); name a file with "
            "the output of 'brokerless export ... --json'."
        ) from None
