"""A topic that a deployment needs, as the infrastructure asks for it and the function that creates it reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brokerless.errors import ConfigError
from brokerless.schema import Schema, check_name, dead_letters, partition_table


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """One topic that must exist: one for producers, or a pipeline's output.

    Attributes:
        name: the name of the topic.
        schema: its columns.
        partitions: the number of tables.
        dead_letters_of: the inputs of the pipeline that writes this topic; their columns are those of its dead-letter
            topic. Without inputs there is no dead-letter topic.
    """

    name: str
    schema: str
    partitions: int = 1
    dead_letters_of: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of its partitions and of its dead letters, relative to the root."""
        tables = tuple(partition_table(self.name, number) for number in range(self.partitions))
        return (*tables, dead_letters(self.name)) if self.dead_letters_of else tables

    def to_properties(self) -> dict[str, Any]:
        """Return the entry of the custom resource's property ``Topics``."""
        properties = {"Name": self.name, "Schema": self.schema, "Partitions": self.partitions}
        return {**properties, **({"DeadLettersOf": list(self.dead_letters_of)} if self.dead_letters_of else {})}

    @classmethod
    def from_properties(cls, properties: object) -> TopicRequest:
        """Parse an entry of the custom resource's property ``Topics``.

        Args:
            properties: ``{"Name": "t", "Schema": "n long", "Partitions": "2", "DeadLettersOf": ["a"]}``; the last two
                may be missing. CloudFormation turns numbers into text.

        Raises:
            ConfigError: a field is missing, unknown or unreadable.
            SchemaError: the schema cannot be read.
        """
        required = {"Name", "Schema"}
        if not isinstance(properties, dict) or not required <= {*properties} <= required | {
            "Partitions",
            "DeadLettersOf",
        }:
            raise ConfigError(
                f"A topic must have Name and Schema, and may have Partitions and DeadLettersOf, got {properties!r}."
            )
        name, schema = check_name(str(properties["Name"])), str(properties["Schema"])
        inputs = properties.get("DeadLettersOf", [])
        try:
            partitions = int(properties.get("Partitions", 1))
        except (TypeError, ValueError):
            raise ConfigError(
                f"Topic {name!r}: Partitions must be an integer, got {properties['Partitions']!r}."
            ) from None
        if not isinstance(inputs, list):
            raise ConfigError(f"Topic {name!r}: DeadLettersOf must be a list of topics' names, got {inputs!r}.")
        Schema.parse(schema)
        return cls(name, schema, partitions, tuple(check_name(str(topic)) for topic in inputs))
