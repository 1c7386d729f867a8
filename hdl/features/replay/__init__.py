"""Links that repeat what was damaged: both ends, the check of a word, and control words."""
