"""What tells whether a database is trusted: digests of rows, signatures, and who owns the file."""
