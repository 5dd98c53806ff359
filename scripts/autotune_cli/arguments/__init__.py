"""The options of commands. These modules do not import torch, which takes seconds, so that --help answers at once."""
