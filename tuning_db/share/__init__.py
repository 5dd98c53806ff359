"""What is exchanged between databases: their rows, differences, merges and exports."""
