"""The golden run: what some 40 commands print and leave, recorded before and after a refactoring,
and compared."""
