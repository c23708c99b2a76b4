"""Permissions: policy statements written by hand, no wider than the library needs.

``grant`` methods of the CDK are not used for data: they add wildcards such as ``s3:GetObject*`` and ``s3:List*``. A
role that appends to a topic reaches its tables and nothing else in the bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_iam as iam

from brokerless.groups.state import group_folder
from brokerless.schema import dead_letters, partition_table
from infra.checks import acknowledge_resources
from infra.constructs.storage import STATE, TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aws_cdk import aws_kms as kms

    from infra.config import TopicConfig
    from infra.constructs.storage import Storage

_READ: Final = ("s3:GetObject",)
_APPEND: Final = ("s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject")
_JOIN: Final = ("s3:GetObject", "s3:PutObject")
_REMOVE: Final = ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject")
_MOST_LISTED: Final = 10

_OBJECTS = "A table is all objects below its name; their names are not known before they are written."


def topic_tables(topic: TopicConfig) -> tuple[str, ...]:
    """Return patterns of the tables that a producer of the topic appends to: its partitions and its dead letters."""
    if topic.partitions <= _MOST_LISTED:
        tables = [partition_table(topic.name, number) for number in range(topic.partitions)]
    else:
        # A policy has room for some hundred names only. One question mark a digit: no other topic's name fits.
        digits = len(str(topic.partitions - 1))
        tables = [topic.name, *(f"{topic.name}.{'?' * count}" for count in range(1, digits + 1))]
    return (*tables, dead_letters(topic.name))


def allow(
    role: iam.Role, actions: Iterable[str], resources: Iterable[str], *, conditions: Mapping[str, object] | None = None
) -> None:
    """Allow a role these actions on these resources."""
    role.add_to_policy(iam.PolicyStatement(actions=[*actions], resources=[*resources], conditions=conditions))


def allow_reading(role: iam.Role, storage: Storage, tables: Iterable[str]) -> None:
    """Allow a role to read these tables."""
    _allow(role, storage, tables, _READ)


def allow_appending(role: iam.Role, storage: Storage, tables: Iterable[str]) -> None:
    """Allow a role to commit to these tables, which includes reading. Only maintenance may remove objects."""
    _allow(role, storage, tables, _APPEND)


def allow_group(role: iam.Role, storage: Storage, group: str) -> None:
    """Allow a role to be a member of a consumer group. It must be able to read the topics, too (``allow_reading``)."""
    why = "The group's object and one a member; the names of members are drawn when they join."
    _allow_prefixes(role, storage, [f"{TOPICS}/{group_folder(group)}"], _JOIN, why)


def allow_maintaining(role: iam.Role, storage: Storage) -> None:
    """Allow a role to remove objects of all topics, also of deleted ones, whose names are not configured any more."""
    why = "It cleans up every table below the root, also those of deleted topics."
    _allow_prefixes(role, storage, [TOPICS], _REMOVE, why)


def allow_state(role: iam.Role, storage: Storage) -> None:
    """Allow a role to read and write the controller's states."""
    _allow_prefixes(role, storage, [STATE], _REMOVE, "One record a pipeline, below a prefix of the controller's own.")


def allow_scratch(role: iam.Role, storage: Storage, prefix: str) -> None:
    """Allow a role to read, write and delete below a prefix of the scratch bucket."""
    objects = f"{storage.scratch_arn}/{prefix}/*"
    allow(role, _REMOVE, [objects])
    allow(role, ["s3:ListBucket"], [storage.scratch_arn], conditions={"StringLike": {"s3:prefix": [f"{prefix}/*"]}})
    acknowledge_resources(role, [objects], "Scratch files of this job only; their names are made by Spark.")


def allow_metrics(role: iam.Role, namespaces: Sequence[str]) -> None:
    """Allow a role to send metrics to these CloudWatch namespaces."""
    allow(
        role,
        ["cloudwatch:PutMetricData"],
        ["*"],
        conditions={"StringEquals": {"cloudwatch:namespace": list(namespaces)}},
    )
    acknowledge_resources(role, ["*"], "PutMetricData knows no resources; the condition limits it to the namespace.")


def allow_key(role: iam.Role, key: kms.IKey | None, *, service: str) -> None:
    """Allow a role to use the stage's key through one service, for example ``s3``; do nothing without a key."""
    if key is None:
        return
    allow(
        role,
        ["kms:Decrypt", "kms:GenerateDataKey"],
        [key.key_arn],
        conditions={"StringEquals": {"kms:ViaService": f"{service}.{cdk.Aws.REGION}.amazonaws.com"}},
    )


def _allow(role: iam.Role, storage: Storage, tables: Iterable[str], actions: Sequence[str]) -> None:
    prefixes = [f"{TOPICS}/{table}" for table in sorted(set(tables))]
    _allow_prefixes(role, storage, prefixes, actions, _OBJECTS)


def _allow_prefixes(
    role: iam.Role, storage: Storage, prefixes: Sequence[str], actions: Sequence[str], why: str
) -> None:
    objects = [f"{storage.data_arn}/{prefix}/*" for prefix in prefixes]
    allow(role, actions, objects)
    # Listing also makes S3 say of an object that it is not there, instead of refusing to say: readers poll for the next
    # entry. S3 takes the object's name for the prefix then.
    allow(
        role,
        ["s3:ListBucket"],
        [storage.data_arn],
        conditions={"StringLike": {"s3:prefix": [f"{prefix}/*" for prefix in prefixes]}},
    )
    acknowledge_resources(role, objects, why)
    allow_key(role, storage.key, service="s3")
