"""Tables and charts of `autotune algorithms`."""
