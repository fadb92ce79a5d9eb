"""Every cell of every experiment at `scale=paper`, played on small models from a hub on
loopback."""
