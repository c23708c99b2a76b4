"""Run the CDK with the Node.js that is installed with the Python packages, so that its version is pinned."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping


def use_packaged_node(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make the CDK's Python bindings start the ``node`` beside this interpreter. Call it before importing aws_cdk."""
    node = Path(sys.executable).with_name("node")
    if node.exists():
        environ.setdefault("JSII_NODE", str(node))
