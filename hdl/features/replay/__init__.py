"""Links that repeat damaged words: both link ends, the check of a word, and control words."""
