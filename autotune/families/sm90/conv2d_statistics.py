"""Forward convolution for Hopper with the statistics of the batch normalization behind it."""

from autotune.families.sm90.column_totals import column_totals
from autotune.ir import Conv2dStatistics

FAMILY = column_totals(Conv2dStatistics, "statistics", "StatisticsStore")
