"""Links that repeat damaged words: both ends, the check of a word, and control words."""
