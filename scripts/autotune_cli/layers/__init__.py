"""The layer comparison of `autotune bench-layers`: contestants, measurement, tables and charts."""
