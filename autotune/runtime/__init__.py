"""From records and a database to launches. Needs no compiler and no Jinja."""
