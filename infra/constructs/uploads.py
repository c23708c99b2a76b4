"""Upload files that jobs load from S3, under names that the services accept."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.constructs.access import allow

if TYPE_CHECKING:
    from infra.assets import Asset


class Upload(Construct):
    """One file in the CDK's bucket of assets.

    The CDK names an object by the hash and the last suffix of the file. Glue wants ``.gluewheels.zip``, so here the
    hash carries the rest of the name.

    Attributes:
        url: ``s3://bucket/key``.
        digest: its identity.
    """

    def __init__(self, scope: Construct, construct_id: str, *, asset: Asset) -> None:
        super().__init__(scope, construct_id)
        stack = cdk.Stack.of(self)
        self.digest = asset.digest
        staging = cdk.AssetStaging(
            self,
            "File",
            source_path=str(asset.path),
            asset_hash=asset.digest,
            asset_hash_type=cdk.AssetHashType.CUSTOM,
        )
        inner = "".join(Path(asset.path).suffixes[-2:-1]) if asset.path.name.endswith(".gluewheels.zip") else ""
        location = stack.synthesizer.add_file_asset(
            file_name=staging.relative_staged_path(stack),
            packaging=cdk.FileAssetPackaging.FILE,
            source_hash=staging.asset_hash + inner,
            display_name=self.node.path,
        )
        self.url = location.s3_object_url
        self._arn = f"arn:aws:s3:::{location.bucket_name}/{location.object_key}"

    def allow_reading(self, role: iam.Role) -> None:
        """Allow a job to load this file."""
        allow(role, ["s3:GetObject"], [self._arn])


def file_digest(path: Path) -> str:
    """Return the hash of a file that is uploaded unchanged."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
