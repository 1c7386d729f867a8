"""Messages on a ring of whole nodes beside fused updates: ``make messages``."""
