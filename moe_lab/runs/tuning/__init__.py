"""Search of routing temperatures on documents held out of the test (RoE, section 2.2)."""
