"""All mutants, in the order of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.mutants import of_functions, of_maintenance, of_pipelines, of_producers, of_readers, of_the_log

if TYPE_CHECKING:
    from tests.mutants.mutant import Mutant

GROUPS: Final[dict[str, tuple[Mutant, ...]]] = {
    "The log": of_the_log.MUTANTS,
    "Producers and objects": of_producers.MUTANTS,
    "Pipelines": of_pipelines.MUTANTS,
    "Readers": of_readers.MUTANTS,
    "Maintenance": of_maintenance.MUTANTS,
    "Lambda functions": of_functions.MUTANTS,
}

MUTANTS: Final = tuple(mutant for group in GROUPS.values() for mutant in group)
