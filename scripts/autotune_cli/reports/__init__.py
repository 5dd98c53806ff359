"""Data, drawings and the HTML page of `autotune report`."""
