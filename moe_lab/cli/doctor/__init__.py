"""`mode=doctor`: reports what the command needs and this machine lacks."""
