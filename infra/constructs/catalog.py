"""The topics as native Delta tables in the Glue catalog, one for each partition, so that Athena can read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_glue as glue
from constructs import Construct

from brokerless.schema import DEAD_LETTER_COLUMNS, DEAD_LETTERS_SUFFIX, PRODUCED_AT, Column, Schema
from infra.config import catalog_name

if TYPE_CHECKING:
    from brokerless.aws.topic_request import TopicRequest
    from infra.config import StageConfig
    from infra.constructs.storage import Storage

# Delta's names of types that Athena calls otherwise.
_ATHENA: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


class Catalog(Construct):
    """A database with a table for each table of the stage's topics.

    Athena takes the schema and the files from the table's own log; the columns here are what its editor shows.
    """

    def __init__(self, scope: Construct, construct_id: str, *, stage: StageConfig, storage: Storage) -> None:
        super().__init__(scope, construct_id)
        database = glue.CfnDatabase(
            self,
            "Database",
            catalog_id=cdk.Aws.ACCOUNT_ID,
            database_input=glue.CfnDatabase.DatabaseInputProperty(
                name=stage.database, description=f"Topics of brokerless, stage {stage.name}"
            ),
        )
        for request in stage.requests:
            for table in request.tables:
                entry = self._table(stage, storage, table, table_columns(stage, request, table))
                entry.add_resource_dependency(database)

    def _table(self, stage: StageConfig, storage: Storage, table: str, columns: list[Column]) -> glue.CfnTable:
        location = f"{storage.root}/{table}/"
        return glue.CfnTable(
            self,
            f"Table-{table}",
            catalog_id=cdk.Aws.ACCOUNT_ID,
            database_name=stage.database,
            table_input=glue.CfnTable.TableInputProperty(
                name=catalog_name(table),
                table_type="EXTERNAL_TABLE",
                parameters={"EXTERNAL": "TRUE", "table_type": "DELTA", "spark.sql.sources.provider": "delta"},
                storage_descriptor=glue.CfnTable.StorageDescriptorProperty(
                    location=location,
                    columns=[
                        glue.CfnTable.ColumnProperty(name=column.name.lower(), type=athena_type(column.type))
                        for column in columns
                    ],
                    # Placeholders that the catalog wants to see; Delta readers do not use them.
                    input_format="org.apache.hadoop.mapred.SequenceFileInputFormat",
                    output_format="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
                    serde_info=glue.CfnTable.SerdeInfoProperty(
                        serialization_library="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
                        parameters={"serialization.format": "1", "path": location},
                    ),
                ),
            ),
        )


def table_columns(stage: StageConfig, request: TopicRequest, table: str) -> list[Column]:
    """Return the columns of a topic's table: those of its schema or dead letters, then ``_produced_at``."""
    if table.endswith(DEAD_LETTERS_SUFFIX):
        schemas = {other.name: Schema.parse(other.schema) for other in stage.requests}
        inputs = [column for name in request.dead_letters_of for column in schemas[name].columns]
        columns = [*{column.name: column for column in inputs}.values(), *DEAD_LETTER_COLUMNS]
    else:
        columns = list(Schema.parse(request.schema).columns)
    return [*columns, Column(PRODUCED_AT, "timestamp")]


def athena_type(delta_type: str) -> str:
    """Return the catalog's name of a Delta type."""
    return re.sub(r"^\w+", lambda found: _ATHENA.get(found[0], found[0]), delta_type)
