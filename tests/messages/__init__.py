"""Messages on a ring whose slots are full of packets: ``make messages``."""
