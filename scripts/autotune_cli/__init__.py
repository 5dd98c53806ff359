"""What the scripts are made of: thin commands are in the folder above, what they share and show is here."""
