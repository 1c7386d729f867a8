"""Links that retransmit damaged words: both link ends, the CRC of a word, and control words."""
