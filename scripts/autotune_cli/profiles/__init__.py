"""Tables and the HTML page of `autotune profile`."""
