"""Networks in signed bytes: calibration and rewriting."""
