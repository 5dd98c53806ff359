"""Trust in a database: digests of its rows, signatures, and the owner of its file."""
