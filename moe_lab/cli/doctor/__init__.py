"""`mode=doctor`: what this machine and this command lack."""
