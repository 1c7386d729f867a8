"""Feature-specific files for Verilated modules."""
