"""Exchange between databases: merge, sync, pack, export, and the differences of two files."""
