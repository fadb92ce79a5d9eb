"""An attack on the command: kills, failing writes, damaged files, wrong command lines
(docs/reliability.md)."""
