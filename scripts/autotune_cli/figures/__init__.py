"""The figures of README and docs: the record and the plan that each stands on, and what checks and renews them."""

from autotune_cli.figures.catalogue import FILE, Catalogue, Group, put
from autotune_cli.figures.checks import FAULTS, Fault, faults, older_batches
from autotune_cli.figures.measuring import command, measure, record_name
from autotune_cli.figures.pages import pages, updated

__all__ = [
    "FAULTS",
    "FILE",
    "Catalogue",
    "Fault",
    "Group",
    "command",
    "faults",
    "measure",
    "older_batches",
    "pages",
    "put",
    "record_name",
    "updated",
]
