"""Files of features around Verilated modules."""
