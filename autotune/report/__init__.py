"""The HTML page of a tuning database: what it shows is collected, compared with another database, and rendered."""

from autotune.report.collect import collect
from autotune.report.comparison import compare
from autotune.report.page import render
from autotune.report.stored_resources import StoredResources
